#include "oracle/llama_peer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/library_log.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"
#include "model/catch_library_log.h"
// llama.cpp's memory accounts are exported by the library but declared beside its sources.
#include "llama-ext.h"

namespace weir {
namespace {

std::string reason() {
  const std::string text = take_library_log();
  return text.empty() ? "no reason given" : text;
}

// Types that llama.cpp's KV cache takes.
constexpr ggml_type kKvTypes[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,
                                  GGML_TYPE_Q8_0, GGML_TYPE_Q5_1, GGML_TYPE_Q5_0,
                                  GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL};

Result<ggml_type> parse_type(const std::string& name) {
  std::string known;
  for (ggml_type type : kKvTypes) {
    if (name == ggml_type_name(type)) return type;
    known += std::string(known.empty() ? "" : ", ") + ggml_type_name(type);
  }
  return Status(Code::invalid_input,
                "llama.cpp has no KV type \"" + name + "\"; it knows " + known);
}

struct ModelFree {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const { llama_free(context); }
};

struct ThreadsFree {
  void operator()(ggml_threadpool* threads) const { ggml_threadpool_free(threads); }
};

}  // namespace

struct LlamaPeer::Impl {
  std::shared_ptr<llama_model> model;
  std::unique_ptr<ggml_threadpool, ThreadsFree> threads;
  std::unique_ptr<llama_context, ContextFree> context;  // goes before its model and threads
  PeerOptions options;
  int64_t n_vocab = 0;
  int64_t n_tokens = 0;

  static Result<std::unique_ptr<Impl>> open(std::shared_ptr<llama_model> model,
                                            const PeerOptions& options);
};

Result<std::unique_ptr<LlamaPeer::Impl>> LlamaPeer::Impl::open(std::shared_ptr<llama_model> model,
                                                               const PeerOptions& options) {
  Result<ggml_type> type_k = parse_type(options.kv_type_k);
  if (!type_k) return type_k.error();
  Result<ggml_type> type_v = parse_type(options.kv_type_v);
  if (!type_v) return type_v.error();

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.context);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(options.step_tokens);
  params.n_outputs_max = static_cast<uint32_t>(std::min(options.max_outputs, options.step_tokens));
  params.n_seq_max = 1;
  params.n_threads = params.n_threads_batch = options.n_threads;
  params.type_k = *type_k;
  params.type_v = *type_v;
  params.flash_attn_type =
      options.flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.swa_full = false;
  params.no_perf = true;
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
  take_library_log();
  impl->context.reset(llama_init_from_model(model.get(), params));
  if (!impl->context) return Status(Code::internal, "llama.cpp made no context: " + reason());
  impl->model = std::move(model);
  // Threads of its own that stay, as its programs have them: without, every pass starts new ones.
  ggml_threadpool_params threads = ggml_threadpool_params_default(options.n_threads);
  impl->threads.reset(ggml_threadpool_new(&threads));
  if (!impl->threads) return Status(Code::internal, "ggml made no threads");
  llama_attach_threadpool(impl->context.get(), impl->threads.get(), nullptr);
  return impl;
}

LlamaPeer::LlamaPeer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LlamaPeer::~LlamaPeer() = default;

Result<std::unique_ptr<LlamaPeer>> LlamaPeer::load(const std::string& path,
                                                   const PeerOptions& options, bool repack) {
  catch_library_log();
  take_library_log();
  llama_model_params params = llama_model_default_params();
  params.use_extra_bufts = repack;
  std::shared_ptr<llama_model> model(llama_model_load_from_file(path.c_str(), params), ModelFree());
  if (!model) return Status(Code::corrupt, "llama.cpp cannot load " + path + ": " + reason());
  Result<std::unique_ptr<Impl>> impl = Impl::open(std::move(model), options);
  if (!impl) return impl.error();
  return std::unique_ptr<LlamaPeer>(new LlamaPeer(std::move(*impl)));
}

Result<std::unique_ptr<LlamaPeer>> LlamaPeer::reopen(const PeerOptions& options) const {
  Result<std::unique_ptr<Impl>> impl = Impl::open(impl_->model, options);
  if (!impl) return impl.error();
  return std::unique_ptr<LlamaPeer>(new LlamaPeer(std::move(*impl)));
}

Status LlamaPeer::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> output_rows,
                           std::span<float> logits) {
  const auto n = static_cast<int64_t>(tokens.size());
  const auto n_outputs = static_cast<int64_t>(output_rows.size());
  if (n == 0 || n > impl_->options.step_tokens || impl_->n_tokens + n > impl_->options.context ||
      n_outputs > impl_->options.max_outputs)
    return Status(Code::invalid_input,
                  "the peer was opened for " + std::to_string(impl_->options.context) +
                      " tokens, " + std::to_string(impl_->options.step_tokens) + " a step with " +
                      std::to_string(impl_->options.max_outputs) + " outputs; it has " +
                      std::to_string(impl_->n_tokens) + " and was given " + std::to_string(n) +
                      " with " + std::to_string(n_outputs));
  if (static_cast<int64_t>(logits.size()) != n_outputs * impl_->n_vocab)
    return Status(Code::invalid_input, "room for logits does not match the rows asked for");

  llama_batch batch = llama_batch_init(static_cast<int32_t>(n), 0, 1);
  batch.n_tokens = static_cast<int32_t>(n);
  for (int64_t i = 0; i < n; ++i) {
    batch.token[i] = tokens[static_cast<size_t>(i)];
    batch.pos[i] = static_cast<llama_pos>(impl_->n_tokens + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 0;
  }
  for (int32_t row : output_rows) batch.logits[row] = 1;
  const int code = llama_decode(impl_->context.get(), batch);
  llama_synchronize(impl_->context.get());
  llama_batch_free(batch);
  if (code != 0)
    return Status(Code::internal,
                  "llama.cpp's decode returned " + std::to_string(code) + ": " + reason());
  impl_->n_tokens += n;
  const auto width = static_cast<size_t>(impl_->n_vocab);
  for (size_t i = 0; i < output_rows.size(); ++i) {
    const float* row = llama_get_logits_ith(impl_->context.get(), output_rows[i]);
    if (!row) return Status(Code::internal, "llama.cpp gave no logits: " + reason());
    std::memcpy(logits.data() + i * width, row, width * sizeof(float));
  }
  return {};
}

void LlamaPeer::clear() {
  llama_memory_clear(llama_get_memory(impl_->context.get()), true);
  impl_->n_tokens = 0;
}

int64_t LlamaPeer::n_vocab() const { return impl_->n_vocab; }
int64_t LlamaPeer::n_tokens() const { return impl_->n_tokens; }

Bytes LlamaPeer::kv_bytes() const {
  Bytes total;
  for (const auto& [type, memory] : llama_get_memory_breakdown(impl_->context.get()))
    total += {static_cast<int64_t>(memory.context)};
  return total;
}

}  // namespace weir
