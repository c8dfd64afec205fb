// weir verify: the same tokens through weir and llama.cpp in one process, logit by logit.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluator.h"
#include "oracle/llama_peer.h"
#include "oracle/logit_difference.h"

namespace weir {
namespace {

// Rows of logits kept at once: 64 Mi floats, 256 MiB.
constexpr int64_t kMaxLogits = int64_t{64} << 20;

struct VerifyOptions {
  EngineFlags engine;
  std::string file;
  int64_t n_tokens = 1024;
  uint32_t seed = 1;
  double max_nmse = 0;  // 0: by KV type
  bool skip_noise = false;
  bool as_json = false;
};

// Rows of a step whose logits are compared: all that fit the memory, evenly spread, the last among
// them.
std::vector<int32_t> rows_to_compare(int64_t step_tokens, int64_t n_vocab) {
  const int64_t n = std::clamp<int64_t>(kMaxLogits / n_vocab / 2, 1, step_tokens);
  std::vector<int32_t> rows;
  for (int64_t i = 1; i <= n; ++i) {
    rows.push_back(static_cast<int32_t>(step_tokens * i / n - 1));
  }
  return rows;
}

struct Verdict {
  LogitDifference weir_and_peer;
  LogitDifference
      peer_and_peer;  // llama.cpp with another step size: the noise that is always there
  Bytes kv_bytes, peer_kv_bytes;
};

Result<std::vector<Token>> tokens_to_verify(const VerifyOptions& options, const Model& model) {
  const auto n = static_cast<size_t>(options.n_tokens);
  if (!options.file.empty()) {
    Result<std::string> text = read_text_file(options.file);
    if (!text) return text.error();
    Result<std::vector<Token>> tokens = Tokenizer(model.vocab()).tokenize(*text, true, false);
    if (!tokens) return tokens.error();
    if (tokens->empty()) return Status(Code::invalid_input, "'" + options.file + "' has no text");
    tokens->resize(std::min(tokens->size(), n));
    return tokens;
  }
  std::mt19937 random(options.seed);
  std::vector<Token> tokens(n);
  for (Token& token : tokens) {
    token = static_cast<Token>(random() % static_cast<uint64_t>(model.n_vocab()));
  }
  return tokens;
}

Status compare(std::span<const Token> tokens, int64_t step_tokens, Evaluator& weir, LlamaPeer& peer,
               LlamaPeer* second, Verdict& verdict) {
  const auto n_vocab = static_cast<size_t>(peer.n_vocab());
  std::vector<float> expected, again;
  for (size_t at = 0; at < tokens.size();) {
    const size_t n = std::min(static_cast<size_t>(step_tokens), tokens.size() - at);
    const std::span<const Token> step = tokens.subspan(at, n);
    const auto rows = rows_to_compare(static_cast<int64_t>(n), peer.n_vocab());
    expected.resize(rows.size() * n_vocab);
    if (Status s = peer.evaluate(step, rows, expected); !s.ok()) return s;
    Result<std::span<const float>> logits = weir.append(step, rows);
    if (!logits) return logits.error();
    for (size_t r = 0; r < rows.size(); ++r) {
      verdict.weir_and_peer.add(std::span(expected).subspan(r * n_vocab, n_vocab),
                                logits->subspan(r * n_vocab, n_vocab));
    }
    if (second) {
      // In two halves, with the first half's rows left out: what another step size does.
      const size_t half = n / 2;
      if (half > 0) {
        if (Status s = second->evaluate(step.first(half), {}, {}); !s.ok()) return s;
      }
      std::vector<int32_t> late;
      size_t skipped = 0;
      for (const int32_t row : rows) {
        if (static_cast<size_t>(row) < half) {
          ++skipped;
        } else {
          late.push_back(row - static_cast<int32_t>(half));
        }
      }
      again.resize(late.size() * n_vocab);
      if (Status s = second->evaluate(step.subspan(half), late, again); !s.ok()) return s;
      for (size_t r = 0; r < late.size(); ++r) {
        verdict.peer_and_peer.add(std::span(expected).subspan((skipped + r) * n_vocab, n_vocab),
                                  std::span<const float>(again).subspan(r * n_vocab, n_vocab));
      }
    }
    at += n;
  }
  return {};
}

// What rounding alone explains: the exact limit, or llama.cpp's own noise on this model, times 4
// because its two runs share everything but the attention.
double error_limit(const KvFormat& format, const LogitDifference& noise) {
  const bool is_f32 = format.global_k == KvType::f32 && format.global_v == KvType::f32;
  return std::max(is_f32 ? 1e-6 : 1e-5, 4 * noise.nmse());
}

// A gap between two logits that rounding can close: what llama.cpp's own runs differ by, or six
// times the usual difference between the engines.
double logit_noise(const Verdict& v) {
  return std::max(v.peer_and_peer.max_abs, 6 * v.weir_and_peer.rms());
}

void print(const VerifyOptions& options, const Verdict& v, size_t n_tokens, double limit,
           bool is_good) {
  const LogitDifference& d = v.weir_and_peer;
  const double noise = v.peer_and_peer.max_abs;
  const int64_t beyond = d.differing_beyond(logit_noise(v));
  if (options.as_json) {
    const nlohmann::json json = {{"tokens", n_tokens},
                                 {"rows", d.rows},
                                 {"max_abs_logit_diff", d.max_abs},
                                 {"nmse", d.nmse()},
                                 {"argmax_agreement", d.agreement()},
                                 {"argmax_differs_beyond_noise", beyond},
                                 {"peer_noise_max_abs", noise},
                                 {"peer_noise_nmse", v.peer_and_peer.nmse()},
                                 {"peer_kv_bytes", v.peer_kv_bytes.v},
                                 {"kv_bytes", v.kv_bytes.v},
                                 {"max_nmse", limit},
                                 {"verified", is_good}};
    std::puts(json.dump().c_str());
    return;
  }
  std::puts(fmt::format("{} tokens, logits of {} compared with llama.cpp's\n"
                        "  normalized mean squared error  {:.3g}  (limit {:.2g})\n"
                        "  largest difference of a logit  {:.3g}\n"
                        "  same likeliest token           {:.2f} %",
                        n_tokens, d.rows, d.nmse(), limit, d.max_abs, 100 * d.agreement())
                .c_str());
  if (v.peer_and_peer.rows > 0) {
    std::puts(
        fmt::format("  llama.cpp against itself, its two attentions: error {:.3g}, largest {:.3g}",
                    v.peer_and_peer.nmse(), noise)
            .c_str());
    std::puts(fmt::format("  likeliest token differs beyond that noise: {}", beyond).c_str());
  }
  std::puts(fmt::format("  KV memory: weir {}, llama.cpp {}\n{}", format_bytes(v.kv_bytes),
                        format_bytes(v.peer_kv_bytes), is_good ? "verified" : "NOT verified")
                .c_str());
}

// Where llama.cpp computes another function than the vendor, and weir than llama.cpp.
void warn_of_other_models(const KvGeometry& geometry) {
  if (geometry.arch == "gpt-oss") {
    std::fputs(
        "note: compared with llama.cpp's rounding of YaRN's ramp; weir itself runs this model "
        "with the vendor's (docs/models.md)\n",
        stderr);
  }
  const bool has_window =
      std::any_of(geometry.layers.begin(), geometry.layers.end(),
                  [](const KvLayer& layer) { return layer.retention.kind != LayerKind::global; });
  if (has_window && (geometry.arch == "llama" || geometry.arch == "phi3")) {
    std::fputs(
        "note: llama.cpp ignores the window of this model, so the logits differ from where it "
        "is full on; compare fewer tokens with -n (docs/models.md)\n",
        stderr);
  }
}

// llama.cpp has one type for all keys and one for all values, and rounding alone explains a
// difference only where it stores floats.
Status check_comparable(const KvGeometry& geometry, const KvFormat& kv, int64_t n_tokens,
                        int64_t asked_context) {
  if (asked_context > 0 && n_tokens > asked_context) {
    return Status(Code::invalid_input, "-n " + std::to_string(n_tokens) +
                                           " is more than the context of -c " +
                                           std::to_string(asked_context) + "; leave -c out");
  }
  if (geometry.max_context > 0 && n_tokens > geometry.max_context) {
    return Status(Code::invalid_input, "-n " + std::to_string(n_tokens) +
                                           " is more than the model's context of " +
                                           std::to_string(geometry.max_context) + " tokens");
  }
  if (kv.global_k != kv.local_k || kv.global_v != kv.local_v) {
    return Status(Code::invalid_input,
                  "verify needs the same KV types in global and local layers, as llama.cpp has; "
                  "weir perplexity compares any");
  }
  for (const KvType type : {kv.global_k, kv.global_v}) {
    if (kv_type_block(type) == 1) continue;
    return Status(Code::invalid_input,
                  std::string("verify compares float KV, not ") + kv_type_name(type) +
                      "; what quantized KV changes is measured by weir perplexity --kv-type");
  }
  return {};
}

int verify(const VerifyOptions& options) {
  if (!(options.max_nmse >= 0)) {
    return report(Status(Code::invalid_input, "--max-nmse must be a number, 0 or more"));
  }
  ModelOptions model_options = options.engine.model_options(true, options.n_tokens);
  model_options.rope_of_llama_cpp = true;
  Result<std::unique_ptr<Model>> model = Model::load(options.engine.model_path, model_options);
  if (!model) return report(model.error());
  warn_of_other_models((*model)->geometry());
  Result<EngineOptions> engine = options.engine.engine_options(**model);
  if (!engine) return report(engine.error());
  if (Status s = check_comparable((*model)->geometry(), engine->kv, options.n_tokens,
                                  options.engine.context);
      !s.ok()) {
    return report(s);
  }
  Result<std::vector<Token>> tokens = tokens_to_verify(options, **model);
  if (!tokens) return report(tokens.error());

  const auto n = static_cast<int64_t>(tokens->size());
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  Result<std::unique_ptr<Evaluator>> weir =
      Evaluator::create(**model, *device, engine->kv, engine->kv_budget, engine->n_threads);
  if (!weir) return report(weir.error());

  PeerOptions peer_settings = peer_options(*engine, n, engine->step_tokens);
  // In f32, llama.cpp's plain attention is its most exact path.
  peer_settings.flash_attention = engine->kv.global_k != KvType::f32;
  Result<std::unique_ptr<LlamaPeer>> peer =
      LlamaPeer::load(options.engine.model_path, peer_settings, !options.engine.no_repack);
  if (!peer) return report(peer.error());
  std::unique_ptr<LlamaPeer> second;
  if (!options.skip_noise) {
    peer_settings.flash_attention = !peer_settings.flash_attention;
    Result<std::unique_ptr<LlamaPeer>> opened = (*peer)->reopen(peer_settings);
    if (!opened) return report(opened.error());
    second = std::move(*opened);
  }

  Verdict verdict;
  if (Status s = compare(*tokens, engine->step_tokens, **weir, **peer, second.get(), verdict);
      !s.ok()) {
    return report(s);
  }
  verdict.kv_bytes = (*weir)->cache().usage().resident();
  verdict.peer_kv_bytes = (*peer)->kv_bytes();
  const double limit =
      options.max_nmse > 0 ? options.max_nmse : error_limit(engine->kv, verdict.peer_and_peer);
  const bool is_good = verdict.weir_and_peer.nmse() <= limit &&
                       verdict.weir_and_peer.differing_beyond(logit_noise(verdict)) == 0;
  print(options, verdict, tokens->size(), limit, is_good);
  return is_good ? kDone : kWorkFailed;
}

}  // namespace

void add_verify_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Compare weir's logits with llama.cpp's on the same tokens");
  options->engine.add_to(*command);
  command->add_option("-f,--file", options->file, "Text to read (default: random tokens)");
  command->add_option("-n,--tokens", options->n_tokens, "Tokens to compare")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--seed", options->seed, "Seed of the random tokens");
  command->add_option("--max-nmse", options->max_nmse,
                      "Fail above this error (default 1e-6 with f32 KV, else 1e-5; or 4 times "
                      "llama.cpp's own noise if that is more)");
  command->add_flag("--no-noise", options->skip_noise, "Do not measure llama.cpp's own noise");
  command->add_flag("--json", options->as_json, "Print one JSON object");
  command->callback([options, &exit_code] { exit_code = verify(*options); });
}

}  // namespace weir
