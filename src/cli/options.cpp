#include "cli/options.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "cli/commands.h"
#include "geometry/geometry_draft.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

std::optional<int64_t> first_number(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    int64_t number = 0;
    if (std::istringstream(line.substr(key.size())) >> number) return number;
  }
  return std::nullopt;
}

// Half of the memory that is free: the weights, other programs and the page cache keep theirs. In a
// container the limit of its control group counts, too.
Bytes default_budget() {
  int64_t free = first_number("/proc/meminfo", "MemAvailable:").value_or(2 * kMiB) * kKiB;
  if (const auto limit = first_number("/sys/fs/cgroup/memory.max", "")) {
    free = std::min(free, *limit - first_number("/sys/fs/cgroup/memory.current", "").value_or(0));
  }
  return {std::max<int64_t>(free / 2, kMiB)};
}

}  // namespace

void KvTypeOptions::add_to(CLI::App& app, bool several) {
  CLI::Option* types = app.add_option(
      "--kv-type", all,
      std::string("Type of stored keys and values: f32, f16, bf16, q8_0, q6_0, q5_0 or q4_0 "
                  "(default f16)") +
          (several ? "; repeatable" : ""));
  types->type_name("T")->allow_extra_args(false);
  if (!several) types->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  const auto add = [&](const char* names, std::string& value, const char* what) {
    app.add_option(names, value, what)->type_name("T");
  };
  add("--ctk,--kv-type-k,--cache-type-k", k, "Type of stored keys (-ctk)");
  add("--ctv,--kv-type-v,--cache-type-v", v, "Type of stored values (-ctv)");
  add("--kv-type-global", global.both, "Type in global layers");
  add("--kv-type-global-k", global.k, "Type of keys in global layers");
  add("--kv-type-global-v", global.v, "Type of values in global layers");
  add("--kv-type-local", local.both, "Type in local layers");
  add("--kv-type-local-k", local.k, "Type of keys in local layers");
  add("--kv-type-local-v", local.v, "Type of values in local layers");
  app.add_option("--kv-rotate", rotate,
                 "Hadamard rotation of stored rows: auto (types below 8 bits), on, off")
      ->type_name("MODE");
  app.add_option("--kv-share", share,
                 "Where K and V come from one projection (Gemma 4 global layers): store it once "
                 "(auto), or both (off)")
      ->type_name("MODE")
      ->check(CLI::IsMember({"auto", "off"}));
}

Result<std::vector<KvFormat>> KvTypeOptions::formats(int block_tokens) const {
  const Result<KvRotation> rotation = parse_kv_rotation(rotate);
  if (!rotation) return rotation.error();
  std::vector<KvFormat> formats;
  for (const std::string& name : all.empty() ? std::vector<std::string>{"f16"} : all) {
    KvFormat format = KvFormat::uniform(KvType::f16, block_tokens);
    format.rotation = *rotation;
    format.share = share == "auto";
    struct Place {
      KvType& type;
      const std::string &particular, &layers, &rows;
    };
    for (const Place& place : {Place{format.global_k, global.k, global.both, k},
                               {format.global_v, global.v, global.both, v},
                               {format.local_k, local.k, local.both, k},
                               {format.local_v, local.v, local.both, v}}) {
      const std::string& chosen = !place.particular.empty() ? place.particular
                                  : !place.layers.empty()   ? place.layers
                                  : !place.rows.empty()     ? place.rows
                                                            : name;
      const Result<KvType> type = parse_kv_type(chosen);
      if (!type) return type.error();
      place.type = *type;
    }
    const Result<KvType> known = parse_kv_type(name);  // even if nothing uses it
    if (!known) return known.error();
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
      formats.push_back(format);
    }
  }
  return formats;
}

Result<KvFormat> KvTypeOptions::format(const KvGeometry& geometry) const {
  const Result<std::vector<KvFormat>> all_formats = formats(choose_block_tokens(geometry));
  if (!all_formats) return all_formats.error();
  return all_formats->front();
}

std::vector<std::string> KvTypeOptions::without_effect(const KvGeometry& geometry) const {
  bool has_global = false, has_local = false, has_shared = false;
  for (const KvLayer& layer : geometry.layers) {
    const bool is_global = layer.retention.kind == LayerKind::global;
    has_global = has_global || is_global;
    has_local = has_local || !is_global;
    has_shared = has_shared || layer.storage == KvStorage::shared;
  }
  const auto is_given = [](const Layers& types) {
    return !types.both.empty() || !types.k.empty() || !types.v.empty();
  };
  std::vector<std::string> lines;
  if (is_given(local) && !has_local)
    lines.push_back("--kv-type-local has no effect: this model has no local layers");
  if (is_given(global) && !has_global)
    lines.push_back("--kv-type-global has no effect: this model has no global layers");
  if (share != "auto" && !has_shared)
    lines.push_back(
        "--kv-share has no effect: no layer of this model has K and V of one projection");
  return lines;
}

void EngineFlags::add_to(CLI::App& app, bool several_kv_types) {
  app.add_option("-m,--model", model_path, "Model file (GGUF)")->required();
  app.add_option("-c,--ctx-size", context, "Most tokens of a conversation (0: the model's limit)")
      ->check(CLI::Range(int64_t{0}, kMaxTokens));
  app.add_option("--ub,--ubatch-size", step_tokens, "Most tokens computed in one step (-ub)")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("-t,--threads", n_threads, "Threads (0: one a core)")
      ->check(CLI::Range(0, kMaxThreads));
  kv_types.add_to(app, several_kv_types);
  app.add_option("--kv-budget", kv_budget,
                 "Hard limit of all KV memory, e.g. 512MiB (default: half of the free memory)");
  app.add_flag("--no-repack", no_repack, "Keep weights in the file's layout");
  app.add_flag("--mmap", use_mmap,
               "Use weights from the mapped file instead of copying them to 2 MiB pages");
  app.add_flag("--exact", exact,
               "The same bits whatever else runs and however prompts are cut (slower prompts)");
}

int EngineFlags::threads() const {
  if (n_threads > 0) return n_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
}

ModelOptions EngineFlags::model_options(bool show_progress, int64_t longest) const {
  ModelOptions options;
  options.context = context > 0 ? context : longest;
  options.repack = !no_repack;
  options.huge_pages = !use_mmap;
  options.exact = exact;
  if (show_progress && isatty(STDERR_FILENO)) {
    options.progress = [](float done) {
      std::fprintf(stderr, "\rloading %3.0f %%%s", 100.0 * static_cast<double>(done),
                   done >= 1.0f ? "\r\033[K" : "");
      std::fflush(stderr);
    };
  }
  return options;
}

Result<EngineOptions> EngineFlags::engine_options(const Model& model) const {
  EngineOptions options;
  Result<KvFormat> format = kv_types.format(model.geometry());
  if (!format) return format.error();
  options.kv = *format;
  options.kv_budget = default_budget();
  if (!kv_budget.empty()) {
    const Result<Bytes> bytes = parse_bytes(kv_budget);
    if (!bytes) return bytes.error();
    options.kv_budget = *bytes;
  }
  options.max_context = context;
  options.step_tokens = step_tokens;
  options.n_threads = threads();
  options.reuse = reuse;
  return options;
}

void SamplingFlags::add_to(CLI::App& app) {
  app.add_option("--temp", params.temperature, "Temperature (0: always the likeliest token)");
  app.add_option("--top-k", params.top_k, "Keep the k likeliest tokens (0: all)");
  app.add_option("--top-p", params.top_p, "Keep the likeliest tokens of this total probability");
  app.add_option("--min-p", params.min_p,
                 "Drop tokens less likely than this share of the likeliest");
  app.add_option("--repeat-last-n", params.repeat_last_n, "Tokens that penalties look back on");
  app.add_option("--repeat-penalty", params.repeat_penalty, "Divides logits of recent tokens");
  app.add_option("--frequency-penalty", params.frequency_penalty, "Lowers logits by count");
  app.add_option("--presence-penalty", params.presence_penalty, "Lowers logits of seen tokens");
  app.add_option("-s,--seed", seed, "Random seed (-1: a random one)")
      ->check(CLI::Range(int64_t{-1}, int64_t{UINT32_MAX}));
  app.add_option("--grammar", params.grammar, "GBNF grammar that the reply must follow");
  app.add_option("--grammar-file", grammar_file, "File with the grammar");
}

Result<SamplingParams> SamplingFlags::sampling() const {
  SamplingParams result = params;
  result.seed = seed < 0 ? std::random_device{}() : static_cast<uint32_t>(seed);
  if (!grammar_file.empty()) {
    Result<std::string> text = read_text_file(grammar_file);
    if (!text) return text.error();
    if (text->empty()) {
      return Status(Code::invalid_input, "the grammar file '" + grammar_file + "' is empty");
    }
    result.grammar = std::move(*text);
  }
  return result;
}

PeerOptions peer_options(const EngineOptions& engine, int64_t context, int64_t max_outputs) {
  PeerOptions options;
  options.n_threads = engine.n_threads;
  options.context = context;
  options.step_tokens = engine.step_tokens;
  options.max_outputs = max_outputs;
  options.kv_type_k = kv_type_name(engine.kv.global_k);
  options.kv_type_v = kv_type_name(engine.kv.global_v);
  return options;
}

Result<LoadedEngine> load_engine(const EngineFlags& flags, bool show_progress) {
  LoadedEngine loaded;
  Result<std::unique_ptr<Model>> model =
      Model::load(flags.model_path, flags.model_options(show_progress));
  if (!model) return model.error();
  loaded.model = std::move(*model);
  Result<EngineOptions> options = flags.engine_options(*loaded.model);
  if (!options) return options.error();
  loaded.options = *options;
  loaded.device = make_cpu_device();
  Result<std::unique_ptr<Engine>> engine =
      Engine::create(*loaded.model, *loaded.device, loaded.options);
  if (!engine) return engine.error();
  loaded.engine = std::move(*engine);
  return loaded;
}

Result<std::string> read_text_file(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(Code::not_found, "cannot open '" + path + "'");
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount()) {
    text.append(buffer.data(), static_cast<size_t>(file.gcount()));
    if (std::ssize(text) > kGiB) {
      return Status(Code::invalid_input, "'" + path + "' is larger than 1 GiB");
    }
  }
  if (file.bad()) return Status(Code::invalid_input, "cannot read '" + path + "'; is it a file?");
  return text;
}

}  // namespace weir
