#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "model/model.h"
#include "oracle/llama_peer.h"

namespace weir {

constexpr int kMaxThreads = 512;  // ggml's limit

// The options of how KV is stored. What names less wins: --kv-type-local-k over --kv-type-local
// over --kv-type-k over --kv-type.
struct KvTypeOptions {
  std::vector<std::string> all;  // --kv-type
  std::string k, v;
  struct Layers {
    std::string both, k, v;
  };
  Layers global, local;
  std::string rotate = "auto", share = "auto";

  // `several`: --kv-type may be given more than once, for commands that compare.
  void add_to(CLI::App& app, bool several = false);
  // One for each --kv-type, without repetitions; at least one. Errors: invalid_input.
  Result<std::vector<KvFormat>> formats(int block_tokens) const;
  // The first of them, in blocks as long as the planner chooses.
  Result<KvFormat> format(const KvGeometry& geometry) const;
  // What was asked for and changes nothing for this model, one line each, for the user.
  std::vector<std::string> without_effect(const KvGeometry& geometry) const;
};

// The options of every command that computes: -m -c -ub -t and the KV types and budget.
struct EngineFlags {
  std::string model_path;
  int64_t context = 0;
  int64_t step_tokens = 512;
  int n_threads = 0;  // 0: one a core
  KvTypeOptions kv_types;
  std::string kv_budget;
  bool no_repack = false;
  bool use_mmap = false;
  bool exact = false;
  bool reuse = true;  // set by the command: whether there is anything to come back to

  void add_to(CLI::App& app, bool several_kv_types = false);
  int threads() const;
  // `longest` is for commands that know their longest conversation, unless -c says one.
  ModelOptions model_options(bool show_progress, int64_t longest = 0) const;
  // Errors: invalid_input.
  Result<EngineOptions> engine_options(const Model& model) const;
};

// llama.cpp's names and defaults: --temp --top-k --top-p --min-p --repeat-penalty ... --grammar.
struct SamplingFlags {
  SamplingParams params;
  int64_t seed = -1;  // -1: a random one
  std::string grammar_file;

  void add_to(CLI::App& app);
  Result<SamplingParams> sampling() const;
};

// llama.cpp with the same threads, step size and KV types, and room for `context` tokens.
PeerOptions peer_options(const EngineOptions& engine, int64_t context, int64_t max_outputs);

// A loaded model, its device and the engine over it.
struct LoadedEngine {
  std::unique_ptr<Model> model;
  std::unique_ptr<KvDevice> device;
  std::unique_ptr<Engine> engine;
  EngineOptions options;
};
Result<LoadedEngine> load_engine(const EngineFlags& flags, bool show_progress);

// Whole file as bytes; "-" is standard input. Errors: not_found, io_error.
Result<std::string> read_text_file(const std::string& path);

}  // namespace weir
