#include <gtest/gtest.h>

#include "attention/simd_targets.h"
#include "attention/testing_case.h"
#include "base/half.h"

namespace weir {
namespace {

using testing::Case;
using testing::first_error;
using testing::is_quantized;
using testing::kAllTypes;
using testing::Rows;
using testing::run;
using testing::same_bits;
using testing::Storage;
using testing::Team;
using testing::truth_of;
using Split = AttendWork::Split;

// Runs `body` with every instruction set that was compiled in and that this processor has.
template <typename Body>
void for_every_target(Body body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    EXPECT_STREQ(simd_name(), hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

Retention sliding(int64_t w) { return {LayerKind::sliding, w}; }
Retention chunked(int64_t w) { return {LayerKind::chunked, w}; }

class RandomCase {
 public:
  explicit RandomCase(uint64_t seed) : random_(seed) { c.seed = seed; }
  int64_t in(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  template <typename T>
  T of(std::initializer_list<T> list) {
    return *(list.begin() + in(0, static_cast<int64_t>(list.size()) - 1));
  }

  Case c;

 private:
  std::mt19937_64 random_;
};

constexpr float kSinks[] = {0.5f, -3.0f, 9.0f, 30.0f, 0.0f, 1.0f, -90.0f, 2.0f,
                            4.0f, 3.0f,  2.0f, 1.0f,  0.5f, 7.0f, -1.0f,  6.0f};

std::vector<float> factors() {
  std::vector<float> out(512);
  for (size_t i = 0; i < out.size(); ++i) out[i] = 0.25f + static_cast<float>(i * 37 % 101) / 50.0f;
  return out;
}
const std::vector<float> kFactors = factors();

// K and V of one projection, stored once. Sizes that no vector divides, too.
void make_shared(Case& c, uint64_t seed) {
  constexpr std::pair<int, int> kSizes[] = {{512, 128}, {64, 32}, {96, 32}, {50, 6}, {26, 24}};
  c.shape.k_type = c.shape.v_type = kAllTypes[seed % 7];
  const auto [dim, rotating] = kSizes[seed % (is_quantized(c.shape.k_type) ? 3 : 5)];
  c.shape.k_dim = c.shape.v_dim = dim;
  c.shape.k_rotating = rotating;
  c.shape.k_rotated = c.shape.v_rotated = seed % 2 == 1;
  c.params.key_factors = kFactors.data();
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(dim));
}

Case random_case(uint64_t seed) {
  RandomCase r(seed);
  Case& c = r.c;
  c.shape.n_kv_heads = static_cast<int>(r.in(1, 3));
  c.shape.n_heads = c.shape.n_kv_heads * static_cast<int>(r.of({1, 2, 3, 4, 5}));
  c.shape.k_type = kAllTypes[seed % 7];  // any seven seeds have every type
  c.shape.v_type = kAllTypes[(seed + seed / 7) % 7];
  c.shape.k_dim = is_quantized(c.shape.k_type) ? r.of({32, 64, 96, 128, 160})
                                               : r.of({16, 32, 64, 80, 96, 128, 13, 40, 1});
  c.shape.v_dim = is_quantized(c.shape.v_type) ? r.of({32, 64, 96, 128, 160})
                                               : r.of({16, 32, 64, 80, 96, 128, 7, 24, 1, 50});
  c.shape.block_tokens = r.of({16, 32, 64});
  c.shape.k_rotated = r.of({false, true});
  c.shape.v_rotated = r.of({false, true});
  c.params.scale = 1.0f / std::sqrt(static_cast<float>(c.shape.k_dim));
  c.params.softcap = r.of({0.0f, 0.0f, 2.0f, 30.0f});
  c.params.sinks = r.of({false, true}) ? kSinks : nullptr;
  c.spread = r.of({0.5f, 2.0f, 8.0f});
  const int64_t w = r.of<int64_t>({1, 2, 15, 16, 17, 31, 33, 100, 255, 256, 257, 300});
  c.retention = r.of({Retention{}, sliding(w), chunked(w)});
  const int64_t n = r.in(1, 4);
  for (int i = 0; i < n; ++i) {
    const int64_t past =
        r.of<int64_t>({0, w - 1, w, w + 1, 255, 256, 257, r.in(0, 600), r.in(0, 40)});
    c.rows.push_back({i, past, r.of<int64_t>({1, 1, 2, 3, 16, 31, 64, r.in(1, 64)})});
  }
  if (seed % 4 == 3) make_shared(c, seed / 4);
  return c;
}

TEST(Attend, RandomShapesAreWithinRoundingOfTheTruth) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Case c = random_case(seed);
    const auto truth = truth_of(c);
    for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c; });
  }
}

TEST(Attend, TheReferenceIsTheTruthRoundedToFloat) {
  const auto reference = make_reference_device();
  for (uint64_t seed = 300; seed < 340; ++seed) {
    const Case c = random_case(seed);
    auto truth = truth_of(c);
    for (size_t i = 0; i < truth.value.size(); ++i) {
      truth.tolerance[i] = std::abs(truth.value[i]) * 0x1p-24 + 1e-13;
    }
    EXPECT_EQ(first_error(truth, run(c, {.threads = 2, .device = reference.get()})), "") << c;
  }
}

TEST(Attend, HeadSizesOfRealModels) {
  for (const auto& [k, v] : {std::pair{64, 64},
                             {128, 128},
                             {192, 128},
                             {256, 256},
                             {512, 512},
                             {576, 512},
                             {80, 80},
                             {96, 96}}) {
    for (const KvType type : kAllTypes) {
      if (k % kv_type_block(type) != 0 || type == KvType::f32 || type == KvType::bf16) continue;
      Case c;
      c.shape = {.n_heads = 8,
                 .n_kv_heads = 2,
                 .k_dim = k,
                 .v_dim = v,
                 .k_type = type,
                 .v_type = type,
                 .block_tokens = 32};
      c.params.scale = 1.0f / std::sqrt(static_cast<float>(k));
      c.retention = sliding(128);
      c.rows = {{0, 250, 20}, {1, 300, 1}};
      const auto truth = truth_of(c);
      for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c; });
    }
  }
}

// In f32 nothing is lost by rotating: what is left is rounding, about log2(dim) units.
TEST(Attend, RotationsCancel) {
  for (const int dim : {32, 80, 96, 192, 256}) {
    Case c;
    c.shape = {.n_heads = 4,
               .n_kv_heads = 2,
               .k_dim = dim,
               .v_dim = dim,
               .k_type = KvType::f32,
               .v_type = KvType::f32,
               .block_tokens = 16};
    c.params = {.scale = 1.0f / std::sqrt(static_cast<float>(dim)), .softcap = 20, .sinks = kSinks};
    c.rows = {{0, 300, 5}};
    const auto plain = run(c);
    for (const auto& [k, v] : {std::pair{true, false}, {false, true}, {true, true}}) {
      c.shape.k_rotated = k;
      c.shape.v_rotated = v;
      const auto rotated = run(c);
      EXPECT_FALSE(same_bits(rotated, plain));
      double error = 0, power = 0;
      for (size_t i = 0; i < plain.size(); ++i) {
        error += std::pow(double{rotated[i]} - plain[i], 2);
        power += std::pow(double{plain[i]}, 2);
      }
      EXPECT_LT(error / power, 1e-11) << c;
    }
  }
}

TEST(Attend, KeysMadeOfValuesOfRealModels) {
  for (const KvType type : kAllTypes) {
    for (const int B : {16, 32, 64}) {
      Case c;
      make_shared(c, 0);
      c.shape.k_rotated = c.shape.v_rotated = B == 32;
      c.shape.n_heads = 16;
      c.shape.n_kv_heads = 2;
      c.shape.k_type = c.shape.v_type = type;
      c.shape.block_tokens = B;
      c.rows = {{0, 250, 20}, {1, 700, 1}};
      const auto truth = truth_of(c);
      for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c; });
    }
  }
}

TEST(Attend, EveryNumberOfHeadsPerKvHead) {
  for (const KvType type : kAllTypes) {
    for (int group = 1; group <= 8; ++group) {
      const int kv_heads = 1 + group % 2;
      Case c;
      c.shape.k_type = c.shape.v_type = type;
      c.shape.n_kv_heads = kv_heads;
      c.shape.n_heads = kv_heads * group;
      c.params.sinks = kSinks;
      c.rows = {{0, 40, 13}, {1, 270, 1}};
      EXPECT_EQ(first_error(truth_of(c), run(c)), "") << c;
    }
  }
  Case many;  // more heads in one tile than a full tile has rows
  many.shape = {.n_heads = 64, .n_kv_heads = 1, .k_dim = 16, .v_dim = 16, .block_tokens = 16};
  many.rows = {{0, 300, 3}};
  EXPECT_EQ(first_error(truth_of(many), run(many)), "") << many;
}

TEST(Attend, WindowEdgesInTheMiddleOfABlock) {
  size_t next_type = 0;  // of seven, and the loops below have counts that seven does not divide
  for (const int64_t w : {1, 2, 7, 31, 32, 33, 40, 255, 256, 257}) {
    for (const Retention retention : {sliding(w), chunked(w)}) {
      for (const int64_t past :
           {int64_t{0}, w - 1, w, w + 1, int64_t{255}, int64_t{256}, int64_t{257}, int64_t{511}}) {
        for (const int64_t n_new : {1, 2, 17}) {
          Case c;
          c.shape = {.n_heads = 2, .n_kv_heads = 1, .k_dim = 32, .v_dim = 32, .block_tokens = 32};
          c.shape.k_type = c.shape.v_type = kAllTypes[next_type++ % 7];
          c.retention = retention;
          c.rows = {{0, past, n_new}};
          EXPECT_EQ(first_error(truth_of(c), run(c)), "") << c;
        }
      }
    }
  }
}

TEST(Attend, FirstVisibleRowOverridesTheWindow) {
  Case c;
  c.retention = sliding(8);
  c.rows = {{0, 300, 5, {0, 299, 301, 17, 256}}, {1, 10, 2, {11, 0}}};
  c.rows[1].first_visible = {10, 3};
  const auto truth = truth_of(c);
  for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c; });
}

// Scores that differ by hundreds: everything but the maximum vanishes, in whichever part it is.
TEST(Attend, SharpAndFlatSoftmaxAcrossParts) {
  for (const float spread : {0.0f, 60.0f, 400.0f}) {
    Case c;
    c.spread = spread;
    c.rows = {{0, 1000, 3}};
    const auto truth = truth_of(c);
    for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c << spread; });
  }
}

// A sink beyond the range of exp must not overflow: it takes part in the maximum.
TEST(Attend, AHugeSinkTakesAllTheWeight) {
  for (const float sink : {90.0f, 200.0f, 1000.0f}) {
    const float sinks[] = {sink, 0.0f};
    Case c;
    c.shape.n_heads = 2;
    c.params.sinks = sinks;
    c.rows = {{0, 300, 2}};
    const auto truth = truth_of(c);
    for_every_target([&] { EXPECT_EQ(first_error(truth, run(c)), "") << c << sink; });
  }
}

// --- equal bits --------------------------------------------------------------------------------

Case bits_case(uint64_t seed) {
  Case c = random_case(seed);
  c.rows = {{0, 700, 1}, {1, 255, 3}, {2, 0, 64}, {3, 530, 40}, {4, 100, 1}};
  return c;
}

TEST(AttendBits, DoNotDependOnThreadsOrDivision) {
  for (uint64_t seed = 1; seed <= 14; ++seed) {
    const Case c = bits_case(seed);
    for_every_target([&] {
      const auto expected = run(c, {1, Split::never});
      for (const int threads : {1, 2, 7}) {
        for (const Split split : {Split::automatic, Split::never, Split::always}) {
          EXPECT_TRUE(same_bits(run(c, {threads, split}), expected)) << c << " on " << threads;
        }
      }
    });
  }
}

TEST(AttendBits, DoNotDependOnBlockLength) {
  for (uint64_t seed = 20; seed < 34; ++seed) {
    Case c = bits_case(seed);
    for_every_target([&] {
      c.shape.block_tokens = 16;
      const auto expected = run(c);
      for (const int B : {32, 64}) {
        c.shape.block_tokens = B;
        EXPECT_TRUE(same_bits(run(c), expected)) << c;
      }
    });
  }
}

TEST(AttendBits, DoNotDependOnNeighbours) {
  for (uint64_t seed = 40; seed < 54; ++seed) {
    const Case all = bits_case(seed);
    for_every_target([&] {
      std::vector<float> joined;
      for (const Rows& r : all.rows) {
        Case alone = all;
        alone.rows = {r};
        const auto result = run(alone);
        joined.insert(joined.end(), result.begin(), result.end());
      }
      EXPECT_TRUE(same_bits(run(all, {.threads = 2}), joined)) << all;
    });
  }
}

// A prompt read at once, in chunks, or token by token: decode and prefill are the same function.
TEST(AttendBits, DoNotDependOnChunks) {
  for (uint64_t seed = 60; seed < 67; ++seed) {
    Case c = random_case(seed);
    const int64_t total = 391;
    c.rows = {{0, 0, total}};
    for_every_target([&] {
      const auto expected = run(c);
      for (const int64_t chunk : {1, 3, 7, 64, 128, 129}) {
        std::vector<float> joined;
        for (int64_t at = 0; at < total; at += chunk) {
          Case part = c;
          part.rows = {{0, at, std::min(chunk, total - at)}};
          const auto result = run(part, {.threads = chunk > 60 ? 2 : 1});
          joined.insert(joined.end(), result.begin(), result.end());
        }
        EXPECT_TRUE(same_bits(joined, expected)) << c << " in chunks of " << chunk;
      }
    });
  }
}

// A row that one token of a tile reads and another does not must leave the other alone, whatever it
// holds: a mask that multiplies by zero would spread its NaN.
TEST(AttendBits, NaNInARowStaysWithItsReaders) {
  for (const KvType type : kAllTypes) {
    Case c;
    const int B = type == KvType::bf16 || type == KvType::q5_0 ? 16 : 64;
    c.shape = {.n_heads = 4,
               .n_kv_heads = 2,
               .k_dim = 32,
               .v_dim = is_quantized(type) ? 64 : 40,
               .k_type = type,
               .v_type = type,
               .block_tokens = B};
    c.retention = sliding(100);
    c.rows = {{0, 500, 12}};
    for_every_target([&] {
      Storage clean(c);
      store_new(c, clean);
      const auto expected = attend_stored(c, clean);
      const size_t token = static_cast<size_t>(c.shape.n_heads * c.shape.v_dim);
      for (const int64_t row : {int64_t{401}, int64_t{405}, int64_t{511}, int64_t{506}}) {
        Storage dirty(c);
        store_new(c, dirty);
        dirty.poison(0, row);
        const auto result = attend_stored(c, dirty);
        for (int64_t t = 0; t < 12; ++t) {
          if (row >= first_visible(c.retention, 500 + t) && row <= 500 + t) continue;
          EXPECT_EQ(std::memcmp(result.data() + t * token, expected.data() + t * token,
                                token * sizeof(float)),
                    0)
              << c << ": row " << row << " token " << t;
        }
      }
    });
  }
}

// Vectors of 8 and of 16 lanes give the same bits where products are fused.
TEST(AttendBits, DoNotDependOnTheVectorsWidth) {
  for (uint64_t seed = 80; seed < 94; ++seed) {
    const Case c = bits_case(seed);
    std::vector<float> expected;
    for_every_target([&] {
      if (std::string_view(simd_name()).substr(0, 3) != "AVX") return;
      const auto result = run(c);
      if (expected.empty()) expected = result;
      EXPECT_TRUE(same_bits(result, expected)) << c;
    });
  }
}

// The same work plan, used by one layer after another, with the sinks of each.
TEST(AttendWork, ServesOneCallAfterAnother) {
  Case c;
  c.rows = {{0, 900, 1}, {1, 300, 30}};
  Storage storage(c);
  store_new(c, storage);
  AttendWork work;
  work.plan(c.shape, storage.sequences, 3, Split::always);
  std::vector<float> workspace(static_cast<size_t>(work.workspace_floats()));
  work.set_workspace(workspace.data());
  testing::Tokens q(c, storage.n_tokens, c.shape.n_heads, testing::What::q);
  std::vector<std::vector<float>> results;
  for (int call = 0; call < 4; ++call) {
    std::vector<float> out(static_cast<size_t>(storage.n_tokens * 4 * c.shape.v_dim), NAN);
    const AttendArgs args{c.shape,
                          c.params,
                          storage.sequences,
                          q.matrix(),
                          {out.data(), 4 * c.shape.v_dim, c.shape.v_dim},
                          &work};
    testing::run_team(3, [&](int thread) { simd_attend(args, thread, 3); });
    EXPECT_TRUE(same_bits(out, run(c))) << call;
  }
}

TEST(AttendWork, LongRowsAmongShortOnesAreSplit) {
  Case c;
  c.rows = {{0, 8000, 1}, {1, 10, 1}, {2, 10, 1}};
  Storage storage(c);
  AttendWork work;
  work.plan(c.shape, storage.sequences, 2);
  EXPECT_EQ(work.items(), 2 + 8000 / kPartRows + 1);
  work.plan(c.shape, storage.sequences, 1);
  EXPECT_EQ(work.items(), 3);
}

TEST(AttendWork, PartsBeforeTheWindowAreNotPlanned) {
  Case c;
  c.retention = sliding(512);
  c.rows = {{0, 100000, 64}};
  Storage storage(c);
  AttendWork work;
  work.plan(c.shape, storage.sequences, 1);
  for (int32_t i = 0; i < work.items(); ++i) {
    const AttendTile& tile = work.tile(i);
    EXPECT_EQ(tile.first_part, (100000 + tile.first_new - 511) / kPartRows);
    EXPECT_LE(tile.n_parts, 4);
  }
}

// --- field cases -------------------------------------------------------------------------------

// Field case 4: chunked attention reads p mod chunk + 1 keys, sliding min(p+1, w), global p+1. With
// all values one apart from the key's own mark, a flat softmax counts the keys read.
TEST(FieldCase, ChunkedIsNotSliding) {
  for (const auto& [retention, keys] :
       {std::pair<Retention, int64_t (*)(int64_t)>{chunked(8), [](int64_t p) { return p % 8 + 1; }},
        {sliding(8), [](int64_t p) { return std::min<int64_t>(p + 1, 8); }},
        {Retention{}, [](int64_t p) { return p + 1; }}}) {
    Case c;
    c.shape = {.n_heads = 1, .n_kv_heads = 1, .k_dim = 32, .v_dim = 32, .block_tokens = 16};
    c.retention = retention;
    c.spread = 0;  // equal scores
    const float sink = 0;
    c.params.sinks = &sink;  // weight 1 beside the n keys' 1 each
    for (int64_t p = 0; p < 40; ++p) {
      c.shape.k_type = c.shape.v_type = kAllTypes[p % 7];
      c.rows = {{0, p, 1}};
      Storage storage(c);
      const std::vector<float> ones(32, 1.0f);
      for (int64_t row = Storage::lowest_row(c, 0); row <= p; ++row) {
        storage.write(0, row);
        const TilePair t = storage.tiles(0, row, 0);
        codec_of(c.shape.v_type).encode_v(t.v, 16, static_cast<int>(row % 16), ones);
      }
      const double n = static_cast<double>(keys(p));
      const double one =
          c.shape.v_type == KvType::q8_0 ? 127.0 * half_to_float(float_to_half(1.0f / 127)) : 1.0;
      EXPECT_NEAR(attend_stored(c, storage)[0], one * n / (n + 1), 1e-6) << c << " at " << p;
    }
  }
}

// Field case 5: rows outside the window may hold anything, while decoding for five windows.
TEST(FieldCase, RowsOutsideTheWindowMayHoldAnything) {
  for (const Retention retention : {sliding(8), chunked(8), sliding(4)}) {
    for (int64_t i = 0; i < 5 * retention.window * 7; ++i) {
      const int64_t p = i / 7;
      Case c;
      c.shape = {.n_heads = 2, .n_kv_heads = 2, .k_dim = 32, .v_dim = 32, .block_tokens = 16};
      c.shape.k_type = c.shape.v_type = kAllTypes[i % 7];
      c.params.sinks = kSinks;
      c.retention = retention;
      c.rows = {{0, p, 1}};
      Storage poisoned(c);  // stores nothing that is not read
      store_new(c, poisoned);
      Case global = c;  // same rows, all written; the window only by mask
      global.rows[0].first_visible = {first_visible(retention, p)};
      global.retention = {};
      Storage written(global);
      store_new(global, written);
      EXPECT_TRUE(same_bits(attend_stored(c, poisoned), attend_stored(global, written))) << c;
    }
  }
}

}  // namespace
}  // namespace weir
