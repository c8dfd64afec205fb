// weir perplexity: how well a model predicts a text, by llama.cpp's rule.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluator.h"
#include "llama.h"
#include "oracle/llama_peer.h"

namespace weir {
namespace {

struct PerplexityOptions {
  EngineFlags engine;
  std::string file;
  bool with_peer = false;
  bool as_json = false;
};

// Running mean of -log p of the tokens that came.
struct Surprise {
  double sum = 0, sum_of_squares = 0;
  int64_t count = 0;

  void add(std::span<const float> logits, Token next) {
    const float largest = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit - largest));
    const double surprise =
        std::log(total) - static_cast<double>(logits[static_cast<size_t>(next)] - largest);
    sum += surprise;
    sum_of_squares += surprise * surprise;
    ++count;
  }
  double perplexity() const { return std::exp(sum / static_cast<double>(count)); }
  // Standard error of the perplexity, from that of the mean.
  double error() const {
    const double n = static_cast<double>(count);
    const double mean = sum / n;
    const double variance = std::max(0.0, sum_of_squares / n - mean * mean);
    return perplexity() * std::sqrt(variance / std::max(1.0, n - 1));
  }
};

using ReadStep = std::function<Result<std::span<const float>>(std::span<const Token> tokens,
                                                              std::span<const int32_t> rows)>;

// One window of the text: the first half is context, each token of the second half is predicted.
Status read_window(std::span<const Token> tokens, int64_t step_tokens, size_t n_vocab,
                   const ReadStep& read, Surprise& surprise) {
  const size_t first_scored = tokens.size() / 2;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(static_cast<size_t>(step_tokens), tokens.size() - at);
    std::vector<int32_t> rows;
    for (size_t i = 0; i < n; ++i) {
      const size_t position = at + i;
      if (position >= first_scored && position + 1 < tokens.size()) {
        rows.push_back(static_cast<int32_t>(i));
      }
    }
    const Result<std::span<const float>> logits = read(tokens.subspan(at, n), rows);
    if (!logits) return logits.error();
    for (size_t r = 0; r < rows.size(); ++r) {
      surprise.add(logits->subspan(r * n_vocab, n_vocab),
                   tokens[at + static_cast<size_t>(rows[r]) + 1]);
    }
    at += n;
  }
  return {};
}

int perplexity(const PerplexityOptions& options) {
  Result<std::string> text = read_text_file(options.file);
  if (!text) return report(text.error());
  Result<std::unique_ptr<Model>> loaded =
      Model::load(options.engine.model_path, options.engine.model_options(true));
  if (!loaded) return report(loaded.error());
  const Model& model = **loaded;
  Result<EngineOptions> engine = options.engine.engine_options(model);
  if (!engine) return report(engine.error());

  const auto window =
      static_cast<size_t>(options.engine.context > 0 ? options.engine.context : 512);
  Result<std::vector<Token>> tokens = Tokenizer(model.vocab()).tokenize(*text, true, false);
  if (!tokens) return report(tokens.error());
  if (tokens->size() < window || window < 4) {
    return report(
        Status(Code::invalid_input,
               fmt::format("the text has {} tokens; a window of {} needs at least as many "
                           "(and 4): give a longer text or a smaller -c",
                           tokens->size(), window)));
  }
  const auto n_vocab = static_cast<size_t>(model.n_vocab());
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  Result<std::unique_ptr<Evaluator>> weir =
      Evaluator::create(model, *device, engine->kv, engine->kv_budget, engine->n_threads);
  if (!weir) return report(weir.error());

  std::unique_ptr<LlamaPeer> peer;
  std::vector<float> peer_logits;
  if (options.with_peer) {
    Result<std::unique_ptr<LlamaPeer>> opened =
        LlamaPeer::load(options.engine.model_path,
                        peer_options(*engine, static_cast<int64_t>(window), engine->step_tokens),
                        !options.engine.no_repack);
    if (!opened) return report(opened.error());
    peer = std::move(*opened);
  }

  const bool adds_bos = llama_vocab_get_add_bos(model.vocab());
  const size_t windows = tokens->size() / window;
  Surprise ours, theirs;
  for (size_t i = 0; i < windows; ++i) {
    std::vector<Token> part(tokens->begin() + static_cast<int64_t>(i * window),
                            tokens->begin() + static_cast<int64_t>((i + 1) * window));
    if (adds_bos) part[0] = llama_vocab_bos(model.vocab());
    (*weir)->clear();
    Status s = read_window(
        part, engine->step_tokens, n_vocab,
        [&](auto step, auto rows) { return (*weir)->append(step, rows); }, ours);
    if (s.ok() && peer) {
      peer->clear();
      s = read_window(
          part, engine->step_tokens, n_vocab,
          [&](std::span<const Token> step,
              std::span<const int32_t> rows) -> Result<std::span<const float>> {
            peer_logits.resize(rows.size() * n_vocab);
            if (Status e = peer->evaluate(step, rows, peer_logits); !e.ok()) return e;
            return std::span<const float>(peer_logits);
          },
          theirs);
    }
    if (!s.ok()) return report(s);
    if (isatty(STDERR_FILENO)) {
      std::fputs(
          fmt::format("\r{}/{} windows, perplexity {:.4f} ", i + 1, windows, ours.perplexity())
              .c_str(),
          stderr);
    }
  }
  if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);

  if (options.as_json) {
    nlohmann::json json = {{"perplexity", ours.perplexity()},
                           {"error", ours.error()},
                           {"tokens", ours.count},
                           {"context", window},
                           {"kv_type_k", kv_type_name(engine->kv.global_k)},
                           {"kv_type_v", kv_type_name(engine->kv.global_v)}};
    if (peer) {
      json["peer_perplexity"] = theirs.perplexity();
      json["ratio"] = ours.perplexity() / theirs.perplexity();
    }
    std::puts(json.dump().c_str());
    return kDone;
  }
  std::puts(fmt::format("perplexity {:.4f} ± {:.4f} over {} tokens, windows of {}",
                        ours.perplexity(), ours.error(), ours.count, window)
                .c_str());
  if (peer) {
    std::puts(fmt::format("llama.cpp  {:.4f}, ratio {:.6f}", theirs.perplexity(),
                          ours.perplexity() / theirs.perplexity())
                  .c_str());
  }
  return kDone;
}

}  // namespace

void add_perplexity_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand("perplexity", "How well a model predicts a text");
  options->engine.add_to(*command);
  command->add_option("-f,--file", options->file, "The text")->required();
  command->add_flag("--peer", options->with_peer, "Also with llama.cpp, and the ratio");
  command->add_flag("--json", options->as_json, "Print one JSON object");
  command->callback([options, &exit_code] { exit_code = perplexity(*options); });
}

}  // namespace weir
