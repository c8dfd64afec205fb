#include "attention/attention_batch.h"

#include <ggml.h>

#include <algorithm>
#include <deque>

#include "attention/attend_work.h"
#include "attention/grown_buffer.h"
#include "attention/tile_memory.h"

namespace weir {

struct AttentionBatch::Buffers::Impl {
  GrownBuffer scratch;    // rows that no later step reads
  GrownBuffer workspace;  // of the one attend that is running
};

AttentionBatch::Buffers::Buffers() : impl(std::make_unique<Impl>()) {}
AttentionBatch::Buffers::~Buffers() = default;
int64_t AttentionBatch::Buffers::bytes() const {
  return impl->scratch.bytes() + impl->workspace.bytes();
}

namespace {

// The sequences of a step as one owning layer stores them.
struct SlotRows {
  std::vector<std::vector<TilePair>> blocks;  // [item]
  std::vector<SequenceRows> sequences;
  std::vector<SequenceRows> to_store;  // those whose new rows are not there yet
  ggml_tensor* stored = nullptr;       // the op that wrote the new rows, once it is in the graph
};

// How the attends of one group with one head shape are divided.
struct Division {
  int group;
  HeadShape shape;
  AttendWork work;
};

// What one layer's two ops know. The tensors' addresses are read when they run.
struct LayerOp {
  KvDevice* device = nullptr;
  HeadShape shape;
  AttentionParams params;
  std::span<const SequenceRows> sequences, to_store;
  AttendWork* work = nullptr;
};

TokenMatrix matrix_of(const ggml_tensor* t) {
  constexpr size_t kElement = sizeof(float);
  return {static_cast<float*>(t->data), static_cast<int64_t>(t->nb[2] / kElement),
          static_cast<int64_t>(t->nb[1] / kElement)};
}

void run_store(ggml_tensor* dst, int thread, int n_threads, void* state) {
  const auto& op = *static_cast<const LayerOp*>(state);
  op.device->store({op.shape, op.to_store, matrix_of(dst->src[0]), matrix_of(dst->src[1])}, thread,
                   n_threads);
}

void run_attend(ggml_tensor* dst, int thread, int n_threads, void* state) {
  const auto& op = *static_cast<const LayerOp*>(state);
  const TokenMatrix out{static_cast<float*>(dst->data),
                        static_cast<int64_t>(op.shape.n_heads) * op.shape.v_dim, op.shape.v_dim};
  const AttendArgs args{op.shape, op.params, op.sequences, matrix_of(dst->src[0]), out, op.work};
  op.device->attend(args, thread, n_threads);
}

void check_rows(const ggml_tensor* t, int dim, int heads, int64_t tokens) {
  WEIR_CHECK(t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float));
  WEIR_CHECK(t->ne[0] == dim && t->ne[1] == heads && t->ne[2] == tokens && t->ne[3] == 1);
}

}  // namespace

struct AttentionBatch::Impl {
  Impl(const KvLayout& model_layout, const Step& kv_step, KvDevice& kv_device, int threads,
       Buffers& step_buffers)
      : layout(model_layout),
        step(kv_step),
        device(kv_device),
        n_threads(threads),
        buffers(*step_buffers.impl) {
    for (const StepItem& item : step.items()) tokens += item.n_tokens;
    for (const KvGroup& group : layout.groups) slots.emplace_back(group.layers.size());
    place_scratch();
  }

  // Scratch of one layer's K and V serves every layer in turn, of whatever group. Only a layer
  // whose rows are read again by a later one needs scratch of its own.
  void place_scratch() {
    int64_t shared = 0;
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      shared = std::max(shared, step.scratch_blocks(g) * layout.groups[g].largest_layer_bytes.v);
    }
    int64_t end = round_up(shared, 64);
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      scratch_at.emplace_back(layout.groups[g].layers.size(), 0);
      for (size_t slot = 0; slot < scratch_at[g].size(); ++slot) {
        if (!is_read_again(static_cast<int>(g), static_cast<int>(slot))) continue;
        const int64_t bytes = step.scratch_blocks(g) * layer_bytes(layout.groups[g].layers[slot]);
        if (bytes == 0) continue;
        scratch_at[g][slot] = end;
        end += round_up(bytes, 64);
      }
    }
    buffers.scratch.grow(end);
  }

  static int64_t layer_bytes(const GroupLayer& l) {
    return l.n_kv_heads * (l.k_tile_bytes + l.v_tile_bytes);
  }

  bool is_read_again(int group, int slot) const {
    int readers = 0;
    for (size_t layer = 0; layer < layout.group_of.size(); ++layer) {
      readers += layout.group_of[layer] == group && layout.slot_of[layer] == slot;
    }
    return readers > 1;
  }

  TilePair tiles_of(const BlockAddress& block, int group, int slot) const {
    const GroupLayer& l = layout.groups[group].layers[slot];
    if (block.memory) return {block.memory + l.k_offset, block.memory + l.v_offset};
    WEIR_CHECK(block.scratch >= 0 &&
               block.scratch < step.scratch_blocks(static_cast<size_t>(group)));
    std::byte* at =
        buffers.scratch.data() + scratch_at[group][slot] + block.scratch * layer_bytes(l);
    return {at, at + l.n_kv_heads * l.k_tile_bytes};
  }

  // The step's sequences as `slot` of `group` stores them; resolved when first asked for.
  SlotRows& rows_of(int group, int slot) {
    SlotRows& rows = slots[group][slot];
    if (!rows.sequences.empty()) return rows;
    int64_t token = 0;
    for (size_t i = 0; i < step.items().size(); ++i) {
      const StepTable& table = step.table(i, static_cast<size_t>(group));
      std::vector<TilePair>& blocks = rows.blocks.emplace_back();
      for (const BlockAddress& b : table.blocks) blocks.push_back(tiles_of(b, group, slot));
      const std::vector<int64_t>& first = table.first_visible_row;
      WEIR_CHECK(first.empty() || static_cast<int64_t>(first.size()) == table.n_new);
      rows.sequences.push_back({.blocks = blocks,
                                .first_row = table.first_row,
                                .n_past = table.n_past,
                                .n_new = table.n_new,
                                .token_begin = token,
                                .retention = layout.groups[group].retention,
                                .first_visible_row = first.empty() ? nullptr : first.data()});
      if (!table.is_stored) rows.to_store.push_back(rows.sequences.back());
      token += table.n_new;
    }
    WEIR_CHECK(token == tokens);
    return rows;
  }

  AttendWork& work_of(int group, const HeadShape& shape, std::span<const SequenceRows> sequences) {
    for (Division& d : divisions) {
      if (d.group == group && d.shape == shape) return d.work;
    }
    Division& added = divisions.emplace_back();
    added.group = group;
    added.shape = shape;
    added.work.plan(shape, sequences, n_threads);
    buffers.workspace.grow(added.work.workspace_floats() * static_cast<int64_t>(sizeof(float)));
    for (Division& d : divisions) {
      d.work.set_workspace(reinterpret_cast<float*>(buffers.workspace.data()));
    }
    return added.work;
  }

  const KvLayout& layout;
  const Step& step;
  KvDevice& device;
  int n_threads;
  Buffers::Impl& buffers;
  int64_t tokens = 0;
  std::vector<std::vector<SlotRows>> slots;      // [group][slot]
  std::vector<std::vector<int64_t>> scratch_at;  // [group][slot]: start in buffers.scratch
  std::deque<Division> divisions;
  std::deque<LayerOp> ops;
};

AttentionBatch::AttentionBatch(const KvLayout& layout, const Step& step, KvDevice& device,
                               int n_threads, Buffers& buffers)
    : impl_(std::make_unique<Impl>(layout, step, device, n_threads, buffers)) {}

AttentionBatch::~AttentionBatch() = default;

int64_t AttentionBatch::n_tokens() const { return impl_->tokens; }

ggml_tensor* AttentionBatch::attend(ggml_context* ctx, int layer, const AttentionParams& params,
                                    ggml_tensor* q, ggml_tensor* k, ggml_tensor* v) {
  Impl& b = *impl_;
  const int group = b.layout.group_of[layer], slot = b.layout.slot_of[layer];
  const KvGroup& g = b.layout.groups[group];
  const GroupLayer& l = g.layers[slot];
  LayerOp& op = b.ops.emplace_back();
  op.device = &b.device;
  op.params = params;
  op.shape = {.n_heads = static_cast<int>(q->ne[1]),
              .n_kv_heads = l.n_kv_heads,
              .k_dim = l.k_dim,
              .v_dim = l.v_dim,
              .k_type = g.k_type,
              .v_type = g.v_type,
              .block_tokens = g.block_tokens,
              .k_rotated = g.k_rotated,
              .v_rotated = g.v_rotated,
              .k_rotating = l.k_rotating};
  WEIR_CHECK(!l.is_shared() || params.key_factors != nullptr);
  check_rows(q, l.k_dim, op.shape.n_heads, b.tokens);
  SlotRows& rows = b.rows_of(group, slot);
  op.sequences = rows.sequences;
  op.to_store = rows.to_store;
  op.work = &b.work_of(group, op.shape, rows.sequences);

  WEIR_CHECK((k == nullptr) == (v == nullptr));
  WEIR_CHECK((k != nullptr) == (l.layer == layer));
  if (k) {
    check_rows(k, l.k_dim, l.n_kv_heads, b.tokens);
    check_rows(v, l.v_dim, l.n_kv_heads, b.tokens);
    ggml_tensor* args[] = {k, v};
    rows.stored =
        ggml_custom_4d(ctx, GGML_TYPE_F32, 1, 1, 1, 1, args, 2, run_store, GGML_N_TASKS_MAX, &op);
    ggml_format_name(rows.stored, "kv_store-%d", layer);
  }
  // The store's output carries nothing; it says that the rows are there.
  WEIR_CHECK(rows.stored != nullptr);
  ggml_tensor* args[] = {q, rows.stored};
  ggml_tensor* out =
      ggml_custom_4d(ctx, GGML_TYPE_F32, static_cast<int64_t>(l.v_dim) * op.shape.n_heads, b.tokens,
                     1, 1, args, 2, run_attend, GGML_N_TASKS_MAX, &op);
  ggml_format_name(out, "kv_attend-%d", layer);
  return out;
}

}  // namespace weir
