#include "attention/attention_batch.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include "attention/testing_case.h"
#include "kv/kv_cache.h"

namespace weir {
namespace {

using testing::What;

struct LayerSpec {
  Retention retention;
  int n_heads, n_kv_heads, k_dim, v_dim;
  int source;  // the layer whose KV it reads
};

// Layers 1, 3 and 5 read KV that an earlier layer stored; between owner and reader other layers
// store theirs. Groups: global, sliding 40, chunked 64.
const std::vector<LayerSpec> kLayers = {
    {{LayerKind::sliding, 40}, 4, 2, 32, 32, 0},
    {{LayerKind::sliding, 40}, 4, 2, 32, 32, 0},
    {{}, 6, 1, 96, 64, 2},
    {{LayerKind::sliding, 40}, 8, 2, 32, 32, 0},
    {{LayerKind::sliding, 40}, 2, 1, 64, 16, 4},
    {{}, 3, 1, 96, 64, 2},
    {{LayerKind::chunked, 64}, 4, 4, 16, 16, 6},
    {{LayerKind::sliding, 40}, 4, 2, 32, 32, 7},
    {{LayerKind::sliding, 40}, 2, 1, 64, 16, 4},
};

KvLayout layout_of(int block_tokens) {
  KvGeometry geometry;
  for (size_t i = 0; i < kLayers.size(); ++i) {
    const LayerSpec& l = kLayers[i];
    KvLayer layer;
    layer.index = static_cast<int>(i);
    layer.retention = l.retention;
    layer.n_heads = l.n_heads;
    layer.n_kv_heads = l.n_kv_heads;
    layer.k_dim = l.k_dim;
    layer.v_dim = l.v_dim;
    layer.source = l.source;
    geometry.layers.push_back(layer);
  }
  KvFormat format = KvFormat::uniform(KvType::f16, block_tokens);
  format.global_k = KvType::q8_0;
  format.global_v = KvType::q4_0;
  format.local_k = KvType::f32;
  return *make_layout(geometry, format);
}

// A KV store that fills every block with NaN when it is taken and when it is freed.
struct Store {
  explicit Store(KvLayout layout)
      : cache(KvCache::create(
                  std::move(layout), budget, *memory,
                  {.address_space = {kGiB}, .max_context = 1024, .extent = {}, .poison = true})
                  .value()) {}

  SeqId sequence(int number) {
    while (static_cast<int>(sequences.size()) <= number) {
      sequences.push_back(cache->create_sequence());
    }
    return sequences[number];
  }
  int64_t length(int number) { return cache->length(sequence(number)); }

  Budget budget{Bytes{kGiB}};
  std::unique_ptr<KvMemory> memory = make_cpu_memory();
  std::unique_ptr<KvCache> cache;
  std::vector<SeqId> sequences;
  bool used_scratch = false;
};

testing::Case case_of(const KvLayout& layout, int layer, int source) {
  const KvGroup& g = layout.groups[layout.group_of[layer]];
  testing::Case c;
  const LayerSpec& l = kLayers[layer];
  c.shape = {.n_heads = l.n_heads,
             .n_kv_heads = l.n_kv_heads,
             .k_dim = l.k_dim,
             .v_dim = l.v_dim,
             .k_type = g.k_type,
             .v_type = g.v_type,
             .block_tokens = g.block_tokens,
             .k_rotated = g.k_rotated,
             .v_rotated = g.v_rotated};
  c.retention = g.retention;
  c.seed = static_cast<uint64_t>(source + 1);
  return c;
}

AttentionParams params_of(int layer) {
  static const float sinks[] = {1, -2, 3, 0.5f, 4, 2, 0, 1};
  return {
      .scale = 0.2f, .softcap = layer == 2 ? 5.0f : 0.0f, .sinks = layer == 4 ? sinks : nullptr};
}

// [layer][token][head * v_dim] of one step through a ggml graph.
using Outputs = std::vector<std::vector<float>>;

Outputs run_step(Store& store, const std::vector<std::pair<int, int64_t>>& items, int n_threads,
                 KvDevice& device, AttentionBatch::Buffers& buffers) {
  const KvLayout& layout = store.cache->layout();
  std::vector<int64_t> past;
  std::vector<StepItem> step_items;
  int64_t tokens = 0;
  for (const auto& [seq, n_new] : items) {
    past.push_back(store.length(seq));
    step_items.push_back({store.sequence(seq), n_new});
    tokens += n_new;
  }
  Step step = store.cache->plan_step(step_items).value();
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    store.used_scratch |= step.scratch_blocks(g) > 0;
  }
  AttentionBatch batch(layout, step, device, n_threads, buffers);
  EXPECT_EQ(batch.n_tokens(), tokens);

  ggml_context* ctx = ggml_init({size_t{64} << 20, nullptr, false});
  ggml_cgraph* graph = ggml_new_graph(ctx);
  // Rows as a view of a wider tensor, as after a fused projection.
  const auto input = [&](int layer, int source, int heads, int dim, What what) {
    ggml_tensor* whole = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, dim + 8, heads + 1, tokens);
    std::fill_n(static_cast<float*>(whole->data), ggml_nelements(whole), NAN);
    ggml_tensor* view = ggml_view_3d(ctx, whole, dim, heads, tokens, whole->nb[1], whole->nb[2], 0);
    testing::Case c = case_of(layout, layer, source);
    int64_t token = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      for (int64_t t = 0; t < items[i].second; ++t, ++token) {
        for (int h = 0; h < heads; ++h) {
          const auto row = testing::row_of(c, items[i].first, past[i] + t, h, what);
          std::memcpy(static_cast<char*>(view->data) + token * view->nb[2] + h * view->nb[1],
                      row.data(), row.size() * sizeof(float));
        }
      }
    }
    return view;
  };
  std::vector<ggml_tensor*> outputs;
  for (int layer = 0; layer < static_cast<int>(kLayers.size()); ++layer) {
    const LayerSpec& l = kLayers[layer];
    ggml_tensor* q = input(layer, layer, l.n_heads, l.k_dim, What::q);
    const bool owns = l.source == layer;
    ggml_tensor* k = owns ? input(layer, layer, l.n_kv_heads, l.k_dim, What::k) : nullptr;
    ggml_tensor* v = owns ? input(layer, layer, l.n_kv_heads, l.v_dim, What::v) : nullptr;
    outputs.push_back(batch.attend(ctx, layer, params_of(layer), q, k, v));
    EXPECT_EQ(outputs.back()->ne[0], l.v_dim * l.n_heads);
    EXPECT_EQ(outputs.back()->ne[1], tokens);
    ggml_build_forward_expand(graph, outputs.back());
  }
  EXPECT_EQ(ggml_graph_compute_with_ctx(ctx, graph, n_threads), GGML_STATUS_SUCCESS);
  Outputs result;
  for (const ggml_tensor* t : outputs) {
    const float* data = static_cast<const float*>(t->data);
    result.emplace_back(data, data + ggml_nelements(t));
  }
  ggml_free(ctx);
  step.commit();
  return result;
}

// Each sequence alone, everything in memory, by the kernels without ggml.
std::vector<float> expected_rows(const KvLayout& layout, int layer, int seq, int64_t past,
                                 int64_t n_new) {
  const int source = kLayers[layer].source;
  testing::Case c = case_of(layout, layer, source);
  c.params = params_of(layer);
  c.rows = {{seq, past, n_new}};
  testing::Storage storage(c);
  testing::store_new(c, storage);
  c.seed = static_cast<uint64_t>(layer + 1);  // whose queries
  return testing::attend_stored(c, storage);
}

TEST(AttentionBatch, GraphOfManyLayersEqualsEachSequenceAlone) {
  const auto cpu = make_cpu_device();
  for (const int B : {16, 32, 64}) {
    const KvLayout layout = layout_of(B);
    for (const int threads : {1, 2, 7}) {
      Store store(layout);
      AttentionBatch::Buffers buffers;
      // Prompts longer than the window, decoding beside them, and a sequence that comes late.
      for (const auto& items :
           std::vector<std::vector<std::pair<int, int64_t>>>{{{0, 150}, {1, 3}},
                                                             {{1, 1}, {0, 1}, {2, 200}},
                                                             {{2, 129}, {0, 64}, {1, 1}},
                                                             {{0, 1}, {1, 1}, {2, 1}}}) {
        std::vector<int64_t> past;
        for (const auto& item : items) past.push_back(store.length(item.first));
        const Outputs got = run_step(store, items, threads, *cpu, buffers);
        for (size_t layer = 0; layer < kLayers.size(); ++layer) {
          std::vector<float> expected;
          for (size_t i = 0; i < items.size(); ++i) {
            const auto rows = expected_rows(layout, static_cast<int>(layer), items[i].first,
                                            past[i], items[i].second);
            expected.insert(expected.end(), rows.begin(), rows.end());
          }
          EXPECT_TRUE(testing::same_bits(got[layer], expected))
              << "layer " << layer << " B " << B << " on " << threads;
        }
      }
      EXPECT_TRUE(store.used_scratch);
      EXPECT_GT(buffers.bytes(), 0);
    }
  }
}

TEST(AttentionBatch, AgreesWithTheReferenceDevice) {
  const auto cpu = make_cpu_device();
  const auto reference = make_reference_device();
  const KvLayout layout = layout_of(32);
  Store ours(layout), theirs(layout);
  AttentionBatch::Buffers our_buffers, their_buffers;
  for (const auto& items : std::vector<std::vector<std::pair<int, int64_t>>>{
           {{0, 90}, {1, 5}}, {{0, 1}, {1, 77}}, {{1, 1}, {0, 1}}}) {
    const Outputs a = run_step(ours, items, 2, *cpu, our_buffers);
    const Outputs b = run_step(theirs, items, 2, *reference, their_buffers);
    for (size_t layer = 0; layer < a.size(); ++layer) {
      double worst = 0;
      for (size_t i = 0; i < a[layer].size(); ++i) {
        worst = std::max<double>(worst, std::abs(a[layer][i] - b[layer][i]));
      }
      // |v| < 2, scores below 20: (2 * 64 + 4) * 2^-24 * 20 * 2 * 2 and rounding of 250 terms.
      EXPECT_LT(worst, 7e-4) << layer;
    }
  }
}

}  // namespace
}  // namespace weir
