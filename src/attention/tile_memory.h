#pragma once

#include <cstdint>

#include "attention/kv_device.h"
#include "base/bytes.h"

namespace weir {

// Floats from one row of scores to the next: a part, and a cache line more so that the rows of a
// register block do not fall into the same cache sets.
constexpr int64_t kScoreStride = kPartRows + 16;

// Floats of one row of weighted sums: v_dim, rounded up to a cache line.
inline int64_t sum_stride(int v_dim) { return round_up(v_dim, 16); }

// The result of one part for every row of a tile: maximum and denominator per row, then the
// weighted sums of V.
struct PartResult {
  float* max = nullptr;    // [rows]; -infinity: the row reads no key of the part
  float* denom = nullptr;  // [rows]
  float* sums = nullptr;   // [rows][sum_stride]

  static int64_t floats(int64_t rows, int v_dim) {
    return 2 * round_up(rows, 16) + rows * sum_stride(v_dim);
  }
  static PartResult at(float* memory, int64_t rows) {
    const int64_t padded = round_up(rows, 16);
    return {memory, memory + padded, memory + 2 * padded};
  }
};

// A thread's memory while it works on a tile.
struct TileMemory {
  float* q = nullptr;         // scaled queries: register block after register block,
                              // [chain_length][rows], elements in the order of chain_element
  float* row = nullptr;       // one query while it is put together
  float* scores = nullptr;    // [rows][kScoreStride]: scores of a part, then their exponentials
  PartResult part;            // of a tile that is not split
  float* max = nullptr;       // [rows]: of the parts merged so far
  float* denom = nullptr;     // [rows]
  float* unpacked = nullptr;  // [chain_length][kMostKeys]: keys made of V rows

  static int64_t floats(int64_t rows, const HeadShape& shape) {
    return round_up(rows * shape.chain_length(), 16) + round_up(shape.chain_length(), 16) +
           rows * kScoreStride + PartResult::floats(rows, shape.v_dim) + 2 * round_up(rows, 16) +
           (shape.is_shared() ? shape.chain_length() * kMostKeys : 0);
  }
  static TileMemory at(float* memory, int64_t rows, const HeadShape& shape) {
    TileMemory m;
    m.q = memory;
    m.row = m.q + round_up(rows * shape.chain_length(), 16);
    m.scores = m.row + round_up(shape.chain_length(), 16);
    float* part = m.scores + rows * kScoreStride;
    m.part = PartResult::at(part, rows);
    m.max = part + PartResult::floats(rows, shape.v_dim);
    m.denom = m.max + round_up(rows, 16);
    m.unpacked = m.denom + round_up(rows, 16);
    return m;
  }

  static constexpr int64_t kMostKeys = 64;  // of a register block
};

// Which element of a head is n-th in the kernels' chain of products over K of a type: the order in
// which its bits are unpacked (kv/quantized_block.h), for floats the natural one.
inline int chain_element(KvType type, int n) {
  if (kv_type_block(type) == 1 || type == KvType::q8_0) return n;
  // Elements that share a byte of low bits are neighbours, and those that share one of high bits.
  const int step = type == KvType::q6_0 ? 8 : type == KvType::q5_0 ? 4 : 16;
  const int first = n / 32 * 32, in_part = n % 32, per_step = 32 / step;
  return first + in_part / per_step + in_part % per_step / 2 * step + in_part % 2 * 16;
}

// Bytes of one head's tiles.
inline int64_t k_tile_bytes(const HeadShape& s) {
  return s.block_tokens * kv_row_bytes(s.k_type, s.k_stored());
}
inline int64_t v_tile_bytes(const HeadShape& s) {
  return s.block_tokens * kv_row_bytes(s.v_type, s.v_dim);
}

}  // namespace weir
