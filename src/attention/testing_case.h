// For tests: sequences with stored rows in scattered blocks, poisoned wherever nothing is stored,
// and what attention over them must give.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attention/attend_work.h"
#include "attention/kv_device.h"
#include "attention/simd_attend.h"
#include "attention/tile_memory.h"
#include "kv/codec.h"
#include "kv/hadamard.h"

namespace weir::testing {

constexpr uint8_t kPoison = 0xff;  // a NaN in every storage type

constexpr KvType kAllTypes[] = {KvType::f32,  KvType::f16,  KvType::bf16, KvType::q8_0,
                                KvType::q6_0, KvType::q5_0, KvType::q4_0};
inline bool is_quantized(KvType type) { return kv_type_block(type) > 1; }

// One sequence of a case. Its rows depend on `id` and position only, so that it can be run alone,
// beside others, in chunks or at once.
struct Rows {
  int id = 0;
  int64_t n_past = 0, n_new = 0;
  std::vector<int64_t> first_visible = {};  // override, or empty
};

struct Case {
  HeadShape shape{.n_heads = 4, .n_kv_heads = 1, .k_dim = 32, .v_dim = 32, .block_tokens = 32};
  AttentionParams params{.scale = 0.25f};
  Retention retention;
  std::vector<Rows> rows;
  uint64_t seed = 1;
  float spread = 1.0f;  // of the queries: larger ones make the softmax sharper
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.shape.n_heads << "/" << c.shape.n_kv_heads << " heads, k " << c.shape.k_dim << " "
      << kv_type_name(c.shape.k_type) << ", v " << c.shape.v_dim << " "
      << kv_type_name(c.shape.v_type) << ", rotated " << c.shape.k_rotated << c.shape.v_rotated
      << ", B " << c.shape.block_tokens << ", kind " << static_cast<int>(c.retention.kind)
      << " window " << c.retention.window << ", cap " << c.params.softcap << ", sinks "
      << (c.params.sinks != nullptr) << ", seed " << c.seed;
  for (const Rows& r : c.rows) out << ", [" << r.n_past << "+" << r.n_new << "]";
  return out;
}

enum class What : uint64_t { q, k, v };

// The row of one head at one position, the same whenever it is asked for.
inline std::vector<float> row_of(const Case& c, int id, int64_t position, int head, What what) {
  const int dim = what == What::v ? c.shape.v_dim : c.shape.k_dim;
  uint64_t seed = c.seed;
  for (const uint64_t x : {static_cast<uint64_t>(id), static_cast<uint64_t>(position),
                           static_cast<uint64_t>(head), static_cast<uint64_t>(what)}) {
    seed = (seed ^ x) * 0x9e3779b97f4a7c15;
    seed ^= seed >> 29;
  }
  std::minstd_rand random(static_cast<uint32_t>(seed >> 20) | 1);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);  // variance about 1
  std::vector<float> row(static_cast<size_t>(dim));
  for (float& x : row) x = uniform(random) * (what == What::q ? c.spread : 1.0f);
  return row;
}

// What a K tile has of a key: all of it, or the rotating elements (see GroupLayer::k_rotating).
inline std::vector<float> k_tile_row(const Case& c, const std::vector<float>& key) {
  if (c.shape.k_rotating == 0) return key;
  std::vector<float> row;
  for (const int first : {0, c.shape.k_dim / 2}) {
    row.insert(row.end(), key.begin() + first, key.begin() + first + c.shape.k_rotating / 2);
  }
  return row;
}

// Storage of one case: blocks in a shuffled order with gaps, everything poisoned.
class Storage {
 public:
  explicit Storage(const Case& c) : case_(c) {
    const int64_t B = c.shape.block_tokens;
    const int64_t k = c.shape.n_kv_heads * k_tile_bytes(c.shape);
    const int64_t v = c.shape.n_kv_heads * v_tile_bytes(c.shape);
    const int64_t pitch = round_up(k + v, 64) + 192;
    std::vector<int64_t> first_block(c.rows.size()), n_blocks(c.rows.size());
    int64_t total = 0;
    for (size_t i = 0; i < c.rows.size(); ++i) {
      first_block[i] = lowest_row(c, i) / B;
      n_blocks[i] = ceil_div(c.rows[i].n_past + c.rows[i].n_new, B) - first_block[i];
      total += n_blocks[i];
    }
    memory_.assign(static_cast<size_t>(total * pitch + 64), static_cast<std::byte>(kPoison));
    std::vector<int64_t> place(static_cast<size_t>(total));
    for (size_t i = 0; i < place.size(); ++i) place[i] = static_cast<int64_t>(i);
    std::shuffle(place.begin(), place.end(), std::minstd_rand(7));

    size_t next = 0;
    int64_t token = 0;
    blocks_.resize(c.rows.size());
    for (size_t i = 0; i < c.rows.size(); ++i) {
      for (int64_t b = 0; b < n_blocks[i]; ++b) {
        std::byte* at = memory_.data() + place[next++] * pitch;
        blocks_[i].push_back({at, at + k});
      }
      const Rows& r = c.rows[i];
      sequences.push_back(
          {.blocks = blocks_[i],
           .first_row = first_block[i] * B,
           .n_past = r.n_past,
           .n_new = r.n_new,
           .token_begin = token,
           .retention = c.retention,
           .first_visible_row = r.first_visible.empty() ? nullptr : r.first_visible.data()});
      token += r.n_new;
      // The past: only what some new query reads. The rest stays poisoned.
      for (int64_t row = lowest_row(c, i); row < r.n_past; ++row) write(i, row);
    }
    n_tokens = token;
  }

  static int64_t lowest_row(const Case& c, size_t i) {
    const Rows& r = c.rows[i];
    int64_t lowest = r.n_past;
    for (int64_t t = 0; t < r.n_new; ++t) {
      lowest = std::min(lowest, r.first_visible.empty() ? first_visible(c.retention, r.n_past + t)
                                                        : r.first_visible[t]);
    }
    return lowest;
  }

  void write(size_t sequence, int64_t row) {
    const int B = case_.shape.block_tokens;
    for (int h = 0; h < case_.shape.n_kv_heads; ++h) {
      const TilePair t = tiles(sequence, row, h);
      std::vector<float> k =
          k_tile_row(case_, row_of(case_, case_.rows[sequence].id, row, h, What::k));
      std::vector<float> v = row_of(case_, case_.rows[sequence].id, row, h, What::v);
      if (case_.shape.k_rotated) hadamard(std::span<float>(k));
      if (case_.shape.v_rotated) hadamard(std::span<float>(v));
      codec_of(case_.shape.k_type).encode_k(t.k, B, static_cast<int>(row % B), k);
      codec_of(case_.shape.v_type).encode_v(t.v, B, static_cast<int>(row % B), v);
    }
  }
  void poison(size_t sequence, int64_t row) {
    const int B = case_.shape.block_tokens;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> k(static_cast<size_t>(case_.shape.k_stored()), nan);
    const std::vector<float> v(static_cast<size_t>(case_.shape.v_dim), nan);
    for (int h = 0; h < case_.shape.n_kv_heads; ++h) {
      const TilePair t = tiles(sequence, row, h);
      codec_of(case_.shape.k_type).encode_k(t.k, B, static_cast<int>(row % B), k);
      codec_of(case_.shape.v_type).encode_v(t.v, B, static_cast<int>(row % B), v);
    }
  }
  TilePair tiles(size_t sequence, int64_t row, int head) const {
    const TilePair& b =
        blocks_[sequence][(row - sequences[sequence].first_row) / case_.shape.block_tokens];
    return {b.k + head * k_tile_bytes(case_.shape), b.v + head * v_tile_bytes(case_.shape)};
  }
  const std::vector<std::byte>& memory() const { return memory_; }

  std::vector<SequenceRows> sequences;
  int64_t n_tokens = 0;

 private:
  Case case_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<TilePair>> blocks_;
};

// Rows of the new tokens as the graph would hand them over: padded, NaN between the rows.
class Tokens {
 public:
  Tokens(int64_t n_tokens, int n_heads, int dim)
      : head_stride_(dim + 3), token_stride_(n_heads * head_stride_ + 5) {
    data_.assign(static_cast<size_t>(n_tokens * token_stride_),
                 std::numeric_limits<float>::quiet_NaN());
  }
  Tokens(const Case& c, int64_t n_tokens, int n_heads, What what)
      : Tokens(n_tokens, n_heads, what == What::v ? c.shape.v_dim : c.shape.k_dim) {
    int64_t token = 0;
    for (const Rows& r : c.rows) {
      for (int64_t t = 0; t < r.n_new; ++t, ++token) {
        for (int h = 0; h < n_heads; ++h) {
          const auto row = row_of(c, r.id, r.n_past + t, h, what);
          std::copy(row.begin(), row.end(), matrix().row(token, h));
        }
      }
    }
  }
  TokenMatrix matrix() { return {data_.data(), token_stride_, head_stride_}; }

 private:
  int64_t head_stride_, token_stride_;
  std::vector<float> data_;
};

inline void run_team(int n_threads, const std::function<void(int)>& work) {
  std::vector<std::thread> team;
  for (int t = 1; t < n_threads; ++t) team.emplace_back(work, t);
  work(0);
  for (std::thread& t : team) t.join();
}

struct Team {
  int threads = 1;
  AttendWork::Split split = AttendWork::Split::automatic;
  KvDevice* device = nullptr;  // null: the vector kernels
};

// Stores the new rows, then attends. Gives [token][head][v_dim].
inline std::vector<float> attend_stored(const Case& c, Storage& storage, Team team = {}) {
  Tokens q(c, storage.n_tokens, c.shape.n_heads, What::q);
  Tokens out(storage.n_tokens, c.shape.n_heads, c.shape.v_dim);
  AttendWork work;
  work.plan(c.shape, storage.sequences, team.threads, team.split);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> workspace(static_cast<size_t>(work.workspace_floats()) + 16, nan);
  const auto misfit = reinterpret_cast<uintptr_t>(workspace.data()) / sizeof(float) % 16;
  work.set_workspace(workspace.data() + (16 - misfit) % 16);
  const AttendArgs args{c.shape, c.params, storage.sequences, q.matrix(), out.matrix(), &work};
  run_team(team.threads, [&](int thread) {
    team.device ? team.device->attend(args, thread, team.threads)
                : simd_attend(args, thread, team.threads);
  });
  std::vector<float> result;
  for (int64_t t = 0; t < storage.n_tokens; ++t) {
    for (int h = 0; h < c.shape.n_heads; ++h) {
      const float* row = out.matrix().row(t, h);
      result.insert(result.end(), row, row + c.shape.v_dim);
    }
  }
  return result;
}

inline void store_new(const Case& c, Storage& storage, Team team = {}) {
  Tokens k(c, storage.n_tokens, c.shape.n_kv_heads, What::k);
  Tokens v(c, storage.n_tokens, c.shape.n_kv_heads, What::v);
  const StoreArgs args{c.shape, storage.sequences, k.matrix(), v.matrix()};
  run_team(team.threads, [&](int thread) {
    team.device ? team.device->store(args, thread, team.threads)
                : simd_store(args, thread, team.threads);
  });
}

inline std::vector<float> run(const Case& c, Team team = {}) {
  Storage storage(c);
  store_new(c, storage, team);
  return attend_stored(c, storage, team);
}

// Equal bits, NaN included.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The result in double, and how far one in float may be from it.
struct Truth {
  std::vector<double> value, tolerance;  // [token][head][v_dim]
};
Truth truth_of(const Case& c);

// Index of the first element outside the tolerance or NaN, with both values; "" if there is none.
std::string first_error(const Truth& truth, const std::vector<float>& result);

}  // namespace weir::testing
