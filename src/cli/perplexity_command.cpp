// weir perplexity: how well a model predicts a text, by llama.cpp's rule, and what KV types do to
// its predictions.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluator.h"
#include "engine/text_quality.h"
#include "llama.h"
#include "oracle/llama_peer.h"
#include "plan/text_table.h"

namespace weir {
namespace {

struct PerplexityOptions {
  EngineFlags engine;
  std::string file;
  bool with_peer = false;
  bool as_json = false;
};

// What reads the text side by side: f32 KV first, which the others are compared with.
class Readers {
 public:
  Readers(const Model& model, const EngineOptions& engine)
      : model_(model), engine_(engine), device_(make_cpu_device()) {}

  // The formats asked for are `formats`. Errors: invalid_input, io_error.
  Status add(std::span<const KvFormat> formats) {
    KvFormat exact = KvFormat::uniform(KvType::f32, formats.front().block_tokens);
    exact.rotation = KvRotation::off;
    std::vector<KvFormat> all = {exact};
    for (const KvFormat& format : formats) {
      if (format != exact) all.push_back(format);
    }
    for (const KvFormat& format : all) {
      Result<std::unique_ptr<Evaluator>> one =
          Evaluator::create(model_, *device_, format, engine_.kv_budget, engine_.n_threads);
      if (!one) return one.error();
      formats_.push_back(format);
      weir_.push_back(std::move(*one));
    }
    return {};
  }

  Status add_peer(const std::string& path, const PeerOptions& peer, bool repack) {
    Result<std::unique_ptr<LlamaPeer>> opened = LlamaPeer::load(path, peer, repack);
    if (!opened) return opened.error();
    peer_ = std::move(*opened);
    return {};
  }
  bool has_peer() const { return peer_ != nullptr; }

  std::vector<TokenReader> read() {
    std::vector<TokenReader> readers;
    for (const auto& one : weir_) {
      readers.push_back([&one](auto step, auto rows) { return one->append(step, rows); });
    }
    if (peer_) readers.push_back([this](auto step, auto rows) { return read_peer(step, rows); });
    return readers;
  }
  void clear() {
    for (const auto& one : weir_) one->clear();
    if (peer_) peer_->clear();
  }

  size_t index_of(const KvFormat& format) const {
    return static_cast<size_t>(std::find(formats_.begin(), formats_.end(), format) -
                               formats_.begin());
  }
  size_t peer_index() const { return weir_.size(); }
  Bytes kv_bytes(size_t reader) const { return weir_[reader]->cache().usage().resident(); }

 private:
  Result<std::span<const float>> read_peer(std::span<const Token> step,
                                           std::span<const int32_t> rows) {
    peer_logits_.resize(rows.size() * static_cast<size_t>(model_.n_vocab()));
    if (Status e = peer_->evaluate(step, rows, peer_logits_); !e.ok()) return e;
    return std::span<const float>(peer_logits_);
  }

  const Model& model_;
  const EngineOptions& engine_;
  std::unique_ptr<KvDevice> device_;
  std::vector<KvFormat> formats_;
  std::vector<std::unique_ptr<Evaluator>> weir_;
  std::unique_ptr<LlamaPeer> peer_;
  std::vector<float> peer_logits_;
};

nlohmann::json json_of(const KvFormat& format, const TextQuality::Reader& result, Bytes kv) {
  return {{"kv_type", format.type_name()},
          {"kv_type_k", kv_type_name(format.global_k)},
          {"kv_type_v", kv_type_name(format.global_v)},
          {"kv_type_local_k", kv_type_name(format.local_k)},
          {"kv_type_local_v", kv_type_name(format.local_v)},
          {"kv_rotate", kv_rotation_name(format.rotation)},
          {"perplexity", result.surprise.perplexity()},
          {"error", result.surprise.error()},
          {"kl_divergence", result.from_first.mean()},
          {"top1_agreement", result.from_first.agreement()},
          {"kv_bytes", kv.v}};
}

void print(const PerplexityOptions& options, size_t window, std::span<const KvFormat> formats,
           const Readers& readers, const TextQuality& quality) {
  const TextQuality::Reader& exact = quality.of(0);
  const TextQuality::Reader& main = quality.of(readers.index_of(formats.front()));
  const auto theirs = [&]() -> const TextQuality::Reader& {
    return quality.of(readers.peer_index());
  };
  if (options.as_json) {
    // The first type's figures, then those of each.
    const size_t first = readers.index_of(formats.front());
    nlohmann::json json = json_of(formats.front(), main, readers.kv_bytes(first));
    json["tokens"] = main.surprise.count;
    json["context"] = window;
    json["f32_perplexity"] = exact.surprise.perplexity();
    json["by_type"] = nlohmann::json::array();
    for (const KvFormat& format : formats) {
      const size_t i = readers.index_of(format);
      json["by_type"].push_back(json_of(format, quality.of(i), readers.kv_bytes(i)));
    }
    if (readers.has_peer()) {
      json["peer_perplexity"] = theirs().surprise.perplexity();
      json["peer_kl_divergence"] = theirs().from_first.mean();
      json["peer_top1_agreement"] = theirs().from_first.agreement();
      json["ratio"] = main.surprise.perplexity() / theirs().surprise.perplexity();
    }
    std::puts(json.dump().c_str());
    return;
  }
  TextTable table(
      {"KV type", "perplexity", "", "to f32", "KL divergence", "same likeliest", "KV of a window"});
  const auto add = [&](const std::string& name, const TextQuality::Reader& r, std::string kv) {
    table.add({name, fmt::format("{:.4f}", r.surprise.perplexity()),
               fmt::format("± {:.4f}", r.surprise.error()),
               fmt::format("{:+.4f} %",
                           100 * (r.surprise.perplexity() / exact.surprise.perplexity() - 1)),
               fmt::format("{:.3g}", r.from_first.mean()),
               fmt::format("{:.2f} %", 100 * r.from_first.agreement()), std::move(kv)});
  };
  for (const KvFormat& format : formats) {
    const size_t i = readers.index_of(format);
    add(format.type_name(), quality.of(i), format_bytes(readers.kv_bytes(i)));
  }
  if (readers.has_peer()) add("llama.cpp", theirs(), "");
  std::fputs(fmt::format("perplexity {:.4f} ± {:.4f} over {} tokens, windows of {}\n{}",
                         main.surprise.perplexity(), main.surprise.error(), main.surprise.count,
                         window, table.text(""))
                 .c_str(),
             stdout);
  if (readers.has_peer()) {
    std::puts(fmt::format("llama.cpp  {:.4f}, ratio {:.6f}", theirs().surprise.perplexity(),
                          main.surprise.perplexity() / theirs().surprise.perplexity())
                  .c_str());
  }
}

int perplexity(const PerplexityOptions& options) {
  Result<std::string> text = read_text_file(options.file);
  if (!text) return report(text.error());
  constexpr int64_t kUsualWindow = 512;
  Result<std::unique_ptr<Model>> loaded =
      Model::load(options.engine.model_path, options.engine.model_options(true, kUsualWindow));
  if (!loaded) return report(loaded.error());
  const Model& model = **loaded;
  Result<EngineOptions> engine = options.engine.engine_options(model);
  if (!engine) return report(engine.error());
  const Result<std::vector<KvFormat>> formats =
      options.engine.kv_types.formats(engine->kv.block_tokens);
  if (!formats) return report(formats.error());

  const auto window =
      static_cast<size_t>(options.engine.context > 0 ? options.engine.context : kUsualWindow);
  Result<std::vector<Token>> tokens = Tokenizer(model.vocab()).tokenize(*text, true, false);
  if (!tokens) return report(tokens.error());
  if (tokens->size() < window || window < 4) {
    return report(
        Status(Code::invalid_input,
               fmt::format("the text has {} tokens; a window of {} needs at least as many "
                           "(and 4): give a longer text or a smaller -c",
                           tokens->size(), window)));
  }
  Readers readers(model, *engine);
  if (Status s = readers.add(*formats); !s.ok()) return report(s);
  if (options.with_peer) {
    const PeerOptions peer =
        peer_options(*engine, static_cast<int64_t>(window), engine->step_tokens);
    const Status s = readers.add_peer(options.engine.model_path, peer, !options.engine.no_repack);
    if (!s.ok()) return report(s);
  }

  const bool adds_bos = llama_vocab_get_add_bos(model.vocab());
  const size_t windows = tokens->size() / window;
  TextQuality quality(readers.read(), static_cast<size_t>(model.n_vocab()));
  const size_t main = readers.index_of(formats->front());
  for (size_t i = 0; i < windows; ++i) {
    std::vector<Token> part(tokens->begin() + static_cast<int64_t>(i * window),
                            tokens->begin() + static_cast<int64_t>((i + 1) * window));
    if (adds_bos) part[0] = llama_vocab_bos(model.vocab());
    readers.clear();
    if (Status s = quality.read_window(part, engine->step_tokens); !s.ok()) return report(s);
    if (isatty(STDERR_FILENO)) {
      std::fputs(fmt::format("\r{}/{} windows, perplexity {:.4f} ", i + 1, windows,
                             quality.of(main).surprise.perplexity())
                     .c_str(),
                 stderr);
    }
  }
  if (isatty(STDERR_FILENO)) std::fputs("\r\033[K", stderr);
  print(options, window, *formats, readers, quality);
  return kDone;
}

}  // namespace

void add_perplexity_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand(
      "perplexity", "How well a model predicts a text, with one KV type or several");
  options->engine.add_to(*command, true);
  command->add_option("-f,--file", options->file, "The text")->required();
  command->add_flag("--peer", options->with_peer, "Also with llama.cpp, and the ratio");
  command->add_flag("--json", options->as_json, "Print one JSON object");
  command->callback([options, &exit_code] { exit_code = perplexity(*options); });
}

}  // namespace weir
