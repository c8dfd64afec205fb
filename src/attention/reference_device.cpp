#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/kv_device.h"
#include "attention/tile_memory.h"
#include "kv/codec.h"
#include "kv/hadamard.h"

namespace weir {
namespace {

// One head's tiles of the block that holds a row, and the row's place in them.
struct Place {
  std::byte *k, *v;
  int row;
};

Place place_of(const HeadShape& shape, const SequenceRows& s, int64_t row, int kv_head) {
  const TilePair& block = s.blocks[(row - s.first_row) / shape.block_tokens];
  return {block.k + kv_head * k_tile_bytes(shape), block.v + kv_head * v_tile_bytes(shape),
          static_cast<int>(row % shape.block_tokens)};
}

// The query by which the products with what read_key() gives are scores.
std::vector<double> factored(const HeadShape& shape, const float* factors, const float* q) {
  std::vector<double> out(q, q + shape.k_dim);
  if (!shape.is_shared()) {
    if (shape.k_rotated) hadamard(std::span<double>(out));
    return out;
  }
  for (int d = 0; d < shape.k_dim; ++d) out[d] *= factors[d];
  for (int i = 0; i < shape.k_rotating; ++i) {
    out[shape.stored_element(i)] = q[shape.stored_element(i)];
  }
  return out;
}

// The key of a row, without its factors; turned back if it is made of two rows.
std::vector<double> read_key(const HeadShape& shape, const Place& at) {
  std::vector<float> stored(shape.k_stored());
  codec_of(shape.k_type).decode_k(at.k, shape.block_tokens, at.row, stored);
  std::vector<double> own(stored.begin(), stored.end());
  if (!shape.is_shared()) return own;
  std::vector<float> value(shape.v_dim);
  codec_of(shape.v_type).decode_v(at.v, shape.block_tokens, at.row, value);
  std::vector<double> key(value.begin(), value.end());
  if (shape.k_rotated) hadamard(std::span<double>(own));
  if (shape.v_rotated) hadamard(std::span<double>(key));
  for (int i = 0; i < shape.k_stored(); ++i) key[shape.stored_element(i)] = own[i];
  return key;
}

// Softmax attention of one query over the rows [first, last] of one KV head, as in the textbook.
void attend_row(const AttendArgs& args, const SequenceRows& s, int64_t first, int64_t last,
                int head, const float* q, float* out) {
  const HeadShape& shape = args.shape;
  const int kv_head = head / (shape.n_heads / shape.n_kv_heads);
  const double scale = args.params.scale, cap = args.params.softcap;
  const std::vector<double> factored_q = factored(shape, args.params.key_factors, q);
  std::vector<double> score;
  std::vector<float> v(shape.v_dim);
  for (int64_t row = first; row <= last; ++row) {
    const Place at = place_of(shape, s, row, kv_head);
    const std::vector<double> k = read_key(shape, at);
    double dot = 0;
    for (int d = 0; d < shape.k_dim; ++d) dot += factored_q[d] * k[d];
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
    codec_of(shape.v_type).decode_v(at.v, shape.block_tokens, at.row, v);
    for (int d = 0; d < shape.v_dim; ++d) sum[d] += p * v[d];
  }
  if (shape.v_rotated) hadamard(std::span<double>(sum));
  for (int d = 0; d < shape.v_dim; ++d) out[d] = static_cast<float>(sum[d] / denom);
}

class ReferenceDevice final : public KvDevice {
 public:
  KvMemory& memory() override { return *memory_; }
  const char* name() const override { return "reference"; }

  void store(const StoreArgs& args, int thread, int n_threads) override {
    const HeadShape& shape = args.shape;
    std::vector<float> stored(shape.k_stored());
    for (const SequenceRows& s : args.sequences) {
      for (int64_t i = thread; i < s.n_new; i += n_threads) {
        for (int h = 0; h < shape.n_kv_heads; ++h) {
          const Place at = place_of(shape, s, s.n_past + i, h);
          const int B = shape.block_tokens;
          const float* k = args.k.row(s.token_begin + i, h);
          const float* v = args.v.row(s.token_begin + i, h);
          std::vector<float> value(v, v + shape.v_dim);
          for (int e = 0; e < shape.k_stored(); ++e) stored[e] = k[shape.stored_element(e)];
          if (shape.k_rotated) hadamard(std::span<float>(stored));
          if (shape.v_rotated) hadamard(std::span<float>(value));
          codec_of(shape.k_type).encode_k(at.k, B, at.row, stored);
          codec_of(shape.v_type).encode_v(at.v, B, at.row, value);
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
