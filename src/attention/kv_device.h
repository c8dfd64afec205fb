// attention/: attention over block tables. The reference that defines the truth, the SIMD kernels,
// and the ggml op that puts them into a graph.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "geometry/kv_layout.h"
#include "geometry/window.h"
#include "kv/kv_memory.h"

namespace weir {

// Key ranges are cut at multiples of this many rows, and the parts merged in index order. So the
// bits of a result depend only on the rows read: not on threads, neighbours, tiles or block length.
constexpr int64_t kPartRows = 256;

struct HeadShape {
  int n_heads = 0;  // query heads; a multiple of n_kv_heads
  int n_kv_heads = 0;
  int k_dim = 0, v_dim = 0;
  KvType k_type = KvType::f16, v_type = KvType::f16;
  int block_tokens = 0;
  // Rows are stored Hadamard-rotated: q turns as K does, and the result is turned back as V was.
  bool k_rotated = false, v_rotated = false;
  // Above 0: K is stored in part, see GroupLayer::k_rotating. The other elements of a key are those
  // of its V row times AttentionParams::key_factors.
  int k_rotating = 0;

  bool is_shared() const { return k_rotating > 0; }
  int k_stored() const { return is_shared() ? k_rotating : k_dim; }
  // The element of a key that is i-th in a K tile: where it has a part, those of the first half
  // come first.
  int stored_element(int i) const {
    return i < k_stored() / 2 ? i : k_dim / 2 + i - k_stored() / 2;
  }
  // Keys are made of all elements of their V rows, and products with those that K has instead are
  // with zero: rotation mixes elements, and quantized ones come 32 at a time.
  bool takes_whole_values() const {
    return is_shared() && (v_rotated || kv_type_block(v_type) > 1);
  }
  // Products that a score is the sum of.
  int chain_length() const { return takes_whole_values() ? k_rotating + k_dim : k_dim; }
  bool operator==(const HeadShape&) const = default;
};

struct AttentionParams {
  float scale = 1.0f;            // factor on q·k
  float softcap = 0.0f;          // c of c*tanh(s/c) on scaled scores, before the mask; 0 = none
  const float* sinks = nullptr;  // one sink logit per query head, or null
  const float* key_factors = nullptr;  // [k_dim], read where K is stored in part
};

// One layer's part of a block: the tile of the first head; head h follows h tiles later.
struct TilePair {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
};

// One layer of one sequence in a step.
struct SequenceRows {
  std::span<const TilePair> blocks;  // in row order
  int64_t first_row = 0;             // row of blocks[0]'s first row, a multiple of block_tokens
  int64_t n_past = 0;                // row of the first new token
  int64_t n_new = 0;
  int64_t token_begin = 0;  // index of the first new token in q, k, v and out
  Retention retention = {};
  const int64_t* first_visible_row = nullptr;  // [n_new], or null: first_visible(retention, row)

  int64_t first_visible_of(int64_t new_index) const {
    return first_visible_row ? first_visible_row[new_index]
                             : first_visible(retention, n_past + new_index);
  }
};

// Strides in floats.
struct TokenMatrix {
  float* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;
  float* row(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

struct StoreArgs {
  HeadShape shape;
  std::span<const SequenceRows> sequences;
  TokenMatrix k, v;  // the new tokens' rows, f32
};

class AttendWork;  // how one attend call is divided among threads; see attend_work.h

struct AttendArgs {
  HeadShape shape;
  AttentionParams params;
  std::span<const SequenceRows> sequences;
  TokenMatrix q;    // f32 [k_dim] rows
  TokenMatrix out;  // f32 [v_dim] rows; every new token's rows are written
  AttendWork* work = nullptr;
};

// Pool memory, store and attend: where KV lives and who computes on it. Nothing above needs to
// know which device it is.
class KvDevice {
 public:
  virtual ~KvDevice() = default;
  virtual KvMemory& memory() = 0;
  virtual const char* name() const = 0;  // for example "cpu avx-512"
  // Encodes the new rows into their tiles. Called by every thread 0 .. n_threads-1 of a team.
  virtual void store(const StoreArgs& args, int thread, int n_threads) = 0;
  // Attention of the new tokens over stored rows, which `store` has finished writing. Called by
  // every thread of a team with the same args; returns when this thread's share is done.
  virtual void attend(const AttendArgs& args, int thread, int n_threads) = 0;
};

std::unique_ptr<KvDevice> make_cpu_device();        // the fastest kernels this processor runs
std::unique_ptr<KvDevice> make_reference_device();  // plain C++, f32 rows, double accumulation

}  // namespace weir
