#include <atomic>
#include <cstring>
#include <limits>
#include <optional>

#include "base/check.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "model/graph.h"
#include "model/model.h"
#include "model/model_impl.h"

namespace weir {
namespace {

struct BackendFree {
  void operator()(ggml_backend* backend) const { ggml_backend_free(backend); }
};
struct AllocatorFree {
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};
struct ThreadsFree {
  void operator()(ggml_threadpool* threads) const { ggml_threadpool_free(threads); }
};
struct ContextFree {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

// Nodes of a graph: at most this many a layer, and some around them.
constexpr size_t kNodesPerLayer = 256, kNodesAround = 256;

Status bad_input(const std::string& what) { return Status(Code::invalid_input, what); }

}  // namespace

struct Executor::Impl {
  const Model& model;
  KvDevice& device;
  int n_threads;
  std::unique_ptr<ggml_threadpool, ThreadsFree> threads;
  std::unique_ptr<ggml_backend, BackendFree> backend;  // uses the threads: goes first
  std::unique_ptr<ggml_gallocr, AllocatorFree> allocator;
  AttentionBatch::Buffers attention_buffers;
  size_t graph_nodes;
  std::vector<std::byte> graph_memory;  // of tensors' descriptions, reused by every step
  std::atomic<bool> cancelled{false};

  Impl(const Model& m, KvDevice& d, int n);
  Status check(const StepInput& input, const Step& step, std::span<float> logits) const;
};

Executor::Impl::Impl(const Model& m, KvDevice& d, int n)
    : model(m),
      device(d),
      n_threads(n),
      graph_nodes(kNodesPerLayer * m.geometry().layers.size() + kNodesAround) {
  ggml_threadpool_params params = ggml_threadpool_params_default(n);
  threads.reset(ggml_threadpool_new(&params));
  backend.reset(ggml_backend_cpu_init());
  WEIR_CHECK(threads && backend);
  ggml_backend_cpu_set_n_threads(backend.get(), n);
  ggml_backend_cpu_set_threadpool(backend.get(), threads.get());
  // The library's tiled products and fused ops look at how many rows there are.
  ggml_backend_cpu_set_use_ref(backend.get(), m.is_exact());
  ggml_backend_cpu_set_abort_callback(
      backend.get(),
      [](void* flag) {
        return static_cast<std::atomic<bool>*>(flag)->load(std::memory_order_relaxed);
      },
      &cancelled);
  allocator.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
  WEIR_CHECK(allocator);
  graph_memory.resize(graph_nodes * ggml_tensor_overhead() +
                      ggml_graph_overhead_custom(graph_nodes, false));
}

// The library aborts on what is out of range, so nothing of the kind may reach it.
Status Executor::Impl::check(const StepInput& input, const Step& step,
                             std::span<float> logits) const {
  const auto n_tokens = static_cast<int64_t>(input.tokens.size());
  int64_t in_step = 0;
  for (const StepItem& item : step.items()) in_step += item.n_tokens;
  if (n_tokens == 0 || n_tokens != in_step || input.positions.size() != input.tokens.size())
    return bad_input("the step has " + std::to_string(in_step) + " tokens; given were " +
                     std::to_string(n_tokens) + " with " + std::to_string(input.positions.size()) +
                     " positions");
  for (int32_t token : input.tokens)
    if (token < 0 || token >= model.n_vocab())
      return bad_input("token " + std::to_string(token) + " is not in the vocabulary of " +
                       std::to_string(model.n_vocab()));
  for (int64_t position : input.positions)
    if (position < 0 || position > std::numeric_limits<int32_t>::max())
      return bad_input("position " + std::to_string(position) + " is out of range");
  int64_t previous = -1;
  for (int32_t row : input.output_rows) {
    if (row <= previous || row >= n_tokens)
      return bad_input("output rows must ascend and lie in the step");
    previous = row;
  }
  if (static_cast<int64_t>(logits.size()) !=
      static_cast<int64_t>(input.output_rows.size()) * model.n_vocab())
    return bad_input("room for logits does not match the rows asked for");
  return {};
}

Executor::Executor(const Model& model, KvDevice& device, int n_threads) {
  WEIR_CHECK(n_threads >= 1 && n_threads <= GGML_MAX_N_THREADS);
  impl_ = std::make_unique<Impl>(model, device, n_threads);
}
Executor::~Executor() = default;

Status Executor::compute(const StepInput& input, const KvLayout& layout, const Step& step,
                         std::span<float> logits) {
  Impl& e = *impl_;
  e.cancelled.store(false);
  if (Status status = e.check(input, step, logits); !status.ok()) return status;

  const std::unique_ptr<ggml_context, ContextFree> context(
      ggml_init({e.graph_memory.size(), e.graph_memory.data(), true}));
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), e.graph_nodes, false);
  AttentionBatch attention(layout, step, e.device, e.n_threads, e.attention_buffers);
  GraphBuilder builder(context.get(), attention, static_cast<int64_t>(input.tokens.size()),
                       static_cast<int64_t>(input.output_rows.size()), e.model.is_exact());
  ggml_tensor* result = e.model.impl().family->build(builder);
  ggml_set_output(result);
  ggml_build_forward_expand(graph, result);
  if (!ggml_gallocr_alloc_graph(e.allocator.get(), graph))
    return Status(Code::internal, "no memory for the graph of a step of " +
                                      std::to_string(input.tokens.size()) + " tokens");

  std::memcpy(builder.tokens()->data, input.tokens.data(), input.tokens.size_bytes());
  // Positions are unused, and then without memory, in a model that rotates nothing.
  if (auto* positions = static_cast<int32_t*>(builder.positions()->data))
    for (size_t i = 0; i < input.positions.size(); ++i)
      positions[i] = static_cast<int32_t>(input.positions[i]);
  if (builder.zeros()) std::memset(builder.zeros()->data, 0, ggml_nbytes(builder.zeros()));
  builder.fill_of_position(input.positions);
  if (builder.rows())
    std::memcpy(builder.rows()->data, input.output_rows.data(), input.output_rows.size_bytes());

  switch (ggml_backend_graph_compute(e.backend.get(), graph)) {
    case GGML_STATUS_SUCCESS:
      break;
    case GGML_STATUS_ABORTED:
      return Status(Code::cancelled, "the step was cancelled");
    default:
      return Status(Code::internal, "ggml could not compute the step");
  }
  if (builder.has_outputs()) {
    WEIR_CHECK(ggml_nbytes(result) == logits.size_bytes());
    std::memcpy(logits.data(), result->data, logits.size_bytes());
  }
  return {};
}

void Executor::cancel() { impl_->cancelled.store(true); }
int Executor::n_threads() const { return impl_->n_threads; }

Bytes Executor::compute_bytes() const {
  return {static_cast<int64_t>(ggml_gallocr_get_buffer_size(impl_->allocator.get(), 0) +
                               impl_->graph_memory.size()) +
          impl_->attention_buffers.bytes()};
}

}  // namespace weir
