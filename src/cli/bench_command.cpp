// weir bench: prompt and reply speed at growing depths, beside llama.cpp in the same process.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluator.h"
#include "oracle/llama_peer.h"

namespace weir {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a depth or a run

struct BenchOptions {
  EngineFlags engine;
  std::vector<int64_t> depths{0, 4096};
  int64_t prompt_tokens = 512;
  int64_t reply_tokens = 32;
  int repetitions = 3;
  bool with_peer = false;
  bool as_json = false;
};

// An engine under test: reads tokens at the end of what it has read so far.
struct Contestant {
  std::function<Status(std::span<const Token>)> read;  // one step; logits of the last token
  std::function<Bytes()> kv_bytes;
  std::function<void()> clear;
  std::vector<double> prompt_tps, reply_tps;  // of the present depth, one a repetition
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Ratio pair by pair: each repetition's runs stand next to each other in time.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return median(std::move(ratios));
}

class Bench {
 public:
  Bench(const BenchOptions& options, int64_t n_vocab, std::vector<Contestant> contestants)
      : options_(options), n_vocab_(n_vocab), contestants_(std::move(contestants)) {}

  Status run() {
    // Touch every page and wake the threads before anything is timed.
    for (Contestant& c : contestants_) {
      const std::vector<Token> step =
          random_tokens(std::min(options_.prompt_tokens, options_.engine.step_tokens));
      if (Status s = c.read(step); !s.ok()) return s;
      c.clear();
    }
    int64_t depth = 0;
    for (const int64_t target : options_.depths) {
      if (Status s = fill(target - depth); !s.ok()) return s;
      depth = std::max(depth, target);
      if (Status s = measure(depth); !s.ok()) return s;
      depth += options_.repetitions * (options_.prompt_tokens + options_.reply_tokens);
    }
    return {};
  }

  const nlohmann::json& rows() const { return rows_; }

 private:
  std::vector<Token> random_tokens(int64_t n) {
    std::vector<Token> tokens(static_cast<size_t>(n));
    for (Token& t : tokens) {
      t = static_cast<Token>(random_() % static_cast<uint64_t>(n_vocab_));
    }
    return tokens;
  }

  Status fill(int64_t n_tokens) {
    for (int64_t done = 0; done < n_tokens;) {
      const int64_t n = std::min(options_.engine.step_tokens, n_tokens - done);
      const std::vector<Token> tokens = random_tokens(n);
      for (Contestant& c : contestants_) {
        if (Status s = c.read(tokens); !s.ok()) return s;
      }
      done += n;
      std::fputs(fmt::format("\rfilling: {} of {} tokens ", done, n_tokens).c_str(), stderr);
    }
    return {};
  }

  Result<double> tokens_per_second(Contestant& c, std::span<const Token> tokens, int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(step)) {
      const size_t n = std::min(static_cast<size_t>(step), tokens.size() - at);
      if (Status s = c.read(tokens.subspan(at, n)); !s.ok()) return s;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(tokens.size()) / took.count();
  }

  Status measure(int64_t depth) {
    for (Contestant& c : contestants_) c.prompt_tps.clear(), c.reply_tps.clear();
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      const std::vector<Token> prompt = random_tokens(options_.prompt_tokens);
      const std::vector<Token> reply = random_tokens(options_.reply_tokens);
      for (Contestant& c : contestants_) {
        Result<double> tps = tokens_per_second(c, prompt, options_.engine.step_tokens);
        if (!tps) return tps.error();
        c.prompt_tps.push_back(*tps);
      }
      for (Contestant& c : contestants_) {
        Result<double> tps = tokens_per_second(c, reply, 1);
        if (!tps) return tps.error();
        c.reply_tps.push_back(*tps);
      }
      std::fputs(
          fmt::format("\rdepth {}: run {} of {}   ", depth, repetition + 1, options_.repetitions)
              .c_str(),
          stderr);
    }
    std::fputs("\r\033[K", stderr);
    add_row(depth);
    return {};
  }

  void add_row(int64_t depth) {
    const Contestant& weir = contestants_[0];
    nlohmann::json row = {{"depth", depth},
                          {"prefill_tps", median(weir.prompt_tps)},
                          {"decode_tps", median(weir.reply_tps)},
                          {"kv_bytes", weir.kv_bytes().v}};
    std::string line =
        fmt::format("{:>7}  {:>8.1f} {:>8.2f} {:>10}", depth, median(weir.prompt_tps),
                    median(weir.reply_tps), format_bytes(weir.kv_bytes()));
    if (contestants_.size() > 1) {
      const Contestant& peer = contestants_[1];
      const double prompt_ratio = median_ratio(weir.prompt_tps, peer.prompt_tps);
      const double reply_ratio = median_ratio(weir.reply_tps, peer.reply_tps);
      row["peer_prefill_tps"] = median(peer.prompt_tps);
      row["peer_decode_tps"] = median(peer.reply_tps);
      row["peer_kv_bytes"] = peer.kv_bytes().v;
      row["prefill_ratio"] = prompt_ratio;
      row["decode_ratio"] = reply_ratio;
      line += fmt::format("   {:>8.1f} {:>8.2f} {:>10}   {:>6.2f} {:>6.2f}",
                          median(peer.prompt_tps), median(peer.reply_tps),
                          format_bytes(peer.kv_bytes()), prompt_ratio, reply_ratio);
    }
    rows_.push_back(std::move(row));
    if (!options_.as_json) {
      if (rows_.size() == 1) print_head();
      std::puts(line.c_str());
      std::fflush(stdout);
    }
  }

  void print_head() const {
    const bool peer = contestants_.size() > 1;
    std::puts(
        peer ? "  depth      weir: tokens/s and KV         llama.cpp: tokens/s and KV         ratio"
             : "  depth      tokens/s and KV");
    std::puts(
        peer ? "             prompt    reply               prompt    reply            prompt  reply"
             : "             prompt    reply");
  }

  const BenchOptions& options_;
  int64_t n_vocab_;
  std::vector<Contestant> contestants_;
  std::mt19937 random_{1};
  nlohmann::json rows_ = nlohmann::json::array();
};

Contestant weir_contestant(Evaluator& weir) {
  Contestant c;
  c.read = [&weir](std::span<const Token> tokens) {
    const int32_t last = static_cast<int32_t>(tokens.size()) - 1;
    return weir.append(tokens, {&last, 1}).status();
  };
  c.kv_bytes = [&weir] { return weir.cache().usage().resident(); };
  c.clear = [&weir] { weir.clear(); };
  return c;
}

Contestant peer_contestant(LlamaPeer& peer, std::vector<float>& logits) {
  Contestant c;
  c.read = [&peer, &logits](std::span<const Token> tokens) {
    const int32_t last = static_cast<int32_t>(tokens.size()) - 1;
    return peer.evaluate(tokens, {&last, 1}, logits);
  };
  c.kv_bytes = [&peer] { return peer.kv_bytes(); };
  c.clear = [&peer] { peer.clear(); };
  return c;
}

int bench(BenchOptions options) {
  std::sort(options.depths.begin(), options.depths.end());
  Result<std::unique_ptr<Model>> model =
      Model::load(options.engine.model_path, options.engine.model_options(true));
  if (!model) return report(model.error());
  Result<EngineOptions> engine = options.engine.engine_options(**model);
  if (!engine) return report(engine.error());
  // Deepest token that any run reaches, and what the repetitions of earlier depths overshoot.
  const int64_t per_depth = options.repetitions * (options.prompt_tokens + options.reply_tokens);
  int64_t context = 0;
  for (const int64_t depth : options.depths) context = std::max(context, depth) + per_depth;

  const std::unique_ptr<KvDevice> device = make_cpu_device();
  Result<std::unique_ptr<Evaluator>> weir =
      Evaluator::create(**model, *device, engine->kv, engine->kv_budget, engine->n_threads);
  if (!weir) return report(weir.error());
  std::vector<Contestant> contestants{weir_contestant(**weir)};

  std::unique_ptr<LlamaPeer> peer;
  std::vector<float> peer_logits(static_cast<size_t>((*model)->n_vocab()));
  if (options.with_peer) {
    // Its best settings for a CPU: flash attention, repacked weights, the same threads and types.
    Result<std::unique_ptr<LlamaPeer>> opened =
        LlamaPeer::load(options.engine.model_path, peer_options(*engine, context, 1));
    if (!opened) return report(opened.error());
    peer = std::move(*opened);
    contestants.push_back(peer_contestant(*peer, peer_logits));
  }

  Bench bench(options, (*model)->n_vocab(), std::move(contestants));
  if (Status s = bench.run(); !s.ok()) return report(s);
  if (options.as_json) {
    const nlohmann::json json = {{"model", (*model)->description()},
                                 {"device", device->name()},
                                 {"threads", engine->n_threads},
                                 {"kv_type_k", kv_type_name(engine->kv.global_k)},
                                 {"kv_type_v", kv_type_name(engine->kv.global_v)},
                                 {"step_tokens", engine->step_tokens},
                                 {"repetitions", options.repetitions},
                                 {"rows", bench.rows()}};
    std::puts(json.dump().c_str());
  }
  return kDone;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Prompt and reply speed at growing depths");
  options->engine.add_to(*command);
  command->add_option("--depths,-d", options->depths, "Tokens already read, e.g. 0,4096,16384")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMostTokens));
  command->add_option("-p,--n-prompt", options->prompt_tokens, "Prompt tokens of a run")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  command->add_option("-n,--n-gen", options->reply_tokens, "Reply tokens of a run")
      ->check(CLI::Range(int64_t{1}, kMostTokens));
  command->add_option("-r,--repetitions", options->repetitions, "Runs at each depth")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--peer", options->with_peer, "Also llama.cpp, in turn, and the ratios");
  command->add_flag("--json", options->as_json, "Print one JSON object");
  command->callback([options, &exit_code] { exit_code = bench(*options); });
}

}  // namespace weir
