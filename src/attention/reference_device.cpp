#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/half.h"
#include "attention/kv_device.h"
#include "attention/tile_memory.h"

namespace weir {
namespace {

float load(KvType type, const std::byte* tile, int64_t index) {
  switch (type) {
    case KvType::f32: return reinterpret_cast<const float*>(tile)[index];
    case KvType::f16: return from_f16(reinterpret_cast<const uint16_t*>(tile)[index]);
    case KvType::bf16: return from_bf16(reinterpret_cast<const uint16_t*>(tile)[index]);
    default: WEIR_CHECK(!"a KV type without a decoder"); return 0;
  }
}

void save(KvType type, std::byte* tile, int64_t index, float value) {
  switch (type) {
    case KvType::f32: reinterpret_cast<float*>(tile)[index] = value; return;
    case KvType::f16: reinterpret_cast<uint16_t*>(tile)[index] = to_f16(value); return;
    case KvType::bf16: reinterpret_cast<uint16_t*>(tile)[index] = to_bf16(value); return;
    default: WEIR_CHECK(!"a KV type without an encoder");
  }
}

// Where a row of one head is stored.
struct Place {
  std::byte *k, *v;  // tiles
  int64_t row, block_tokens;
  int k_dim, v_dim;

  int64_t k_index(int d) const { return d * block_tokens + row; }
  int64_t v_index(int d) const { return row * v_dim + d; }
};

Place place_of(const HeadShape& shape, const SequenceRows& s, int64_t row, int kv_head) {
  const TilePair& block = s.blocks[(row - s.first_row) / shape.block_tokens];
  return {block.k + kv_head * k_tile_bytes(shape),
          block.v + kv_head * v_tile_bytes(shape),
          row % shape.block_tokens,
          shape.block_tokens,
          shape.k_dim,
          shape.v_dim};
}

// Softmax attention of one query over the rows [first, last] of one KV head, as in the textbook.
void attend_row(const AttendArgs& args, const SequenceRows& s, int64_t first, int64_t last,
                int head, const float* q, float* out) {
  const HeadShape& shape = args.shape;
  const int kv_head = head / (shape.n_heads / shape.n_kv_heads);
  const double scale = args.params.scale, cap = args.params.softcap;
  std::vector<double> score;
  for (int64_t row = first; row <= last; ++row) {
    const Place at = place_of(shape, s, row, kv_head);
    double dot = 0;
    for (int d = 0; d < shape.k_dim; ++d) {
      dot += static_cast<double>(q[d]) * load(shape.k_type, at.k, at.k_index(d));
    }
    dot *= scale;
    score.push_back(cap != 0 ? cap * std::tanh(dot / cap) : dot);
  }
  double max = *std::max_element(score.begin(), score.end());
  if (args.params.sinks) max = std::max<double>(max, args.params.sinks[head]);
  double denom = args.params.sinks ? std::exp(args.params.sinks[head] - max) : 0;
  std::vector<double> sum(shape.v_dim);
  for (int64_t row = first; row <= last; ++row) {
    const double p = std::exp(score[row - first] - max);
    const Place at = place_of(shape, s, row, kv_head);
    denom += p;
    for (int d = 0; d < shape.v_dim; ++d) sum[d] += p * load(shape.v_type, at.v, at.v_index(d));
  }
  for (int d = 0; d < shape.v_dim; ++d) out[d] = static_cast<float>(sum[d] / denom);
}

class ReferenceDevice final : public KvDevice {
 public:
  KvMemory& memory() override { return *memory_; }
  const char* name() const override { return "reference"; }

  void store(const StoreArgs& args, int thread, int n_threads) override {
    const HeadShape& shape = args.shape;
    for (const SequenceRows& s : args.sequences) {
      for (int64_t i = thread; i < s.n_new; i += n_threads) {
        for (int h = 0; h < shape.n_kv_heads; ++h) {
          const Place at = place_of(shape, s, s.n_past + i, h);
          const float* k = args.k.row(s.token_begin + i, h);
          const float* v = args.v.row(s.token_begin + i, h);
          for (int d = 0; d < shape.k_dim; ++d) save(shape.k_type, at.k, at.k_index(d), k[d]);
          for (int d = 0; d < shape.v_dim; ++d) save(shape.v_type, at.v, at.v_index(d), v[d]);
        }
      }
    }
  }

  void attend(const AttendArgs& args, int thread, int n_threads) override {
    for (const SequenceRows& s : args.sequences) {
      for (int64_t i = thread; i < s.n_new; i += n_threads) {
        for (int h = 0; h < args.shape.n_heads; ++h) {
          attend_row(args, s, s.first_visible_of(i), s.n_past + i, h,
                     args.q.row(s.token_begin + i, h), args.out.row(s.token_begin + i, h));
        }
      }
    }
  }

 private:
  std::unique_ptr<KvMemory> memory_ = make_cpu_memory();
};

}  // namespace

std::unique_ptr<KvDevice> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace weir
