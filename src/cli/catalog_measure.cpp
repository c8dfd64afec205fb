#include "cli/catalog_measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <random>

#include "engine/evaluator.h"
#include "model/synth.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

// Removes the file when the measurement ends, however it ends.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::error_code error;
    const std::filesystem::path directory = std::filesystem::temp_directory_path(error);
    path_ = (error ? std::filesystem::path("/tmp") : directory) /
            ("weir-catalog-" + std::to_string(getpid()) + ".gguf");
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void tell_progress(size_t done, size_t all) {
  if (!isatty(STDERR_FILENO)) return;
  std::fprintf(stderr, "\r\033[K");
  if (done < all) std::fprintf(stderr, "read %zu of %zu tokens", done, all);
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

Result<Bytes> planned_bytes(const Model& model, const KvFormat& format,
                            const CatalogMeasurement& what) {
  const Result<KvPlanner> planner = KvPlanner::create(model.geometry(), format);
  if (!planner) return planner.error();
  return planner->plan({.tokens = what.tokens, .ubatch = what.step_tokens}).total();
}

}  // namespace

Result<CatalogMeasurement> measure_kv(const ModelFacts& facts, const CatalogMeasurement& what,
                                      int n_threads) {
  const TemporaryFile file;
  SynthOptions synth;
  synth.n_layers = what.n_layers;
  synth.weights = what.weights;
  const Result<SynthSummary> written = synthesize(facts, synth, file.path());
  if (!written) return written.error();
  ModelOptions options;
  options.huge_pages = false;  // from the mapped file, but for what is repacked: one copy of each
  const Result<std::unique_ptr<Model>> model = Model::load(file.path(), options);
  if (!model) return model.error();

  const KvFormat format = KvFormat::uniform(what.type, choose_block_tokens((*model)->geometry()));
  const Result<Bytes> budget = planned_bytes(**model, format, what);
  if (!budget) return budget.error();
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  const Result<std::unique_ptr<Evaluator>> evaluator =
      Evaluator::create(**model, *device, format, *budget, n_threads);
  if (!evaluator) return evaluator.error();
  std::mt19937 random(1);
  std::vector<Token> tokens(static_cast<size_t>(what.tokens));
  for (Token& token : tokens) {
    token = static_cast<Token>(random() % static_cast<uint64_t>((*model)->n_vocab()));
  }
  const auto step = static_cast<size_t>(what.step_tokens);
  for (size_t at = 0; at < tokens.size(); at += step) {
    tell_progress(at, tokens.size());
    const std::span<const Token> part(tokens.data() + at, std::min(step, tokens.size() - at));
    if (Status s = (*evaluator)->read(part, what.step_tokens, false, nullptr); !s.ok()) return s;
  }
  tell_progress(tokens.size(), tokens.size());

  const KvUsage usage = (*evaluator)->cache().usage();
  CatalogMeasurement measured = what;
  measured.global_bytes = usage.global.v;
  measured.local_bytes = usage.local.v;
  measured.resident_bytes = usage.resident().v;
  measured.date = today();
  return measured;
}

std::string measurement_json(const CatalogMeasurement& m, const std::string& target, int n_layers) {
  std::string command = "weir catalog measure " + target + " --tokens " + std::to_string(m.tokens) +
                        " --kv-type " + kv_type_name(m.type);
  if (m.n_layers < n_layers) command += " --layers " + std::to_string(m.n_layers);
  if (m.weights != "q8_0") command += " --weights " + m.weights;
  if (m.step_tokens != 512) command += " --ubatch " + std::to_string(m.step_tokens);
  OrderedJson json = {{"tokens", m.tokens},
                      {"step_tokens", m.step_tokens},
                      {"kv_type", kv_type_name(m.type)},
                      {"layers", m.n_layers}};
  if (m.weights != "q8_0") json["weights"] = m.weights;
  json["global_bytes"] = m.global_bytes;
  json["local_bytes"] = m.local_bytes;
  json["resident_bytes"] = m.resident_bytes;
  json["command"] = command;
  json["date"] = m.date;
  return json.dump();
}

}  // namespace weir
