// Field case 5: rows outside the window may hold anything.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "attention/kv_device.h"
#include "engine/evaluator.h"
#include "engine/testing/tiny_engine.h"
#include "kv/codec.h"

namespace weir {
namespace {

// Before every attention, fills each row that no query of the step may read with NaN, and puts the
// rows back afterwards: a rewind may want them again.
class PoisoningDevice : public KvDevice {
 public:
  KvMemory& memory() override { return device_->memory(); }
  const char* name() const override { return device_->name(); }
  void store(const StoreArgs& args, int thread, int n_threads) override {
    device_->store(args, thread, n_threads);
  }

  void attend(const AttendArgs& args, int thread, int n_threads) override {
    EXPECT_EQ(n_threads, 1);
    const std::vector<Saved> saved = poison(args);
    poisoned_rows_ += std::ssize(saved);
    device_->attend(args, thread, n_threads);
    for (const Saved& s : saved) {
      std::memcpy(s.tile, s.bytes.data(), s.bytes.size());
    }
  }

  int64_t poisoned_rows() const { return poisoned_rows_; }

 private:
  struct Saved {
    std::byte* tile;
    std::vector<std::byte> bytes;
  };

  static std::vector<Saved> poison(const AttendArgs& args) {
    const HeadShape& shape = args.shape;
    const int B = shape.block_tokens;
    const int64_t k_bytes = B * kv_row_bytes(shape.k_type, shape.k_dim);
    const int64_t v_bytes = B * kv_row_bytes(shape.v_type, shape.v_dim);
    const std::vector<float> nan_k(static_cast<size_t>(shape.k_dim), kNan);
    const std::vector<float> nan_v(static_cast<size_t>(shape.v_dim), kNan);
    std::vector<Saved> saved;
    for (const SequenceRows& rows : args.sequences) {
      const int64_t first = rows.first_visible_of(0);
      const int64_t end = rows.n_past + rows.n_new;
      for (size_t b = 0; b < rows.blocks.size(); ++b) {
        for (int head = 0; head < shape.n_kv_heads; ++head) {
          std::byte* k = rows.blocks[b].k + head * k_bytes;
          std::byte* v = rows.blocks[b].v + head * v_bytes;
          bool is_saved = false;
          for (int r = 0; r < B; ++r) {
            const int64_t row = rows.first_row + static_cast<int64_t>(b) * B + r;
            if (row >= first && row < end) continue;
            if (!is_saved) {
              saved.push_back({k, {k, k + k_bytes}});
              saved.push_back({v, {v, v + v_bytes}});
              is_saved = true;
            }
            codec_of(shape.k_type).encode_k(k, B, r, nan_k);
            codec_of(shape.v_type).encode_v(v, B, r, nan_v);
          }
        }
      }
    }
    return saved;
  }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::unique_ptr<KvDevice> device_ = make_cpu_device();
  int64_t poisoned_rows_ = 0;
};

// The logits of the last row of every step.
std::vector<float> run(KvDevice& device, KvType type, int64_t step_tokens) {
  auto evaluator =
      *Evaluator::create(tiny_model(), device, KvFormat::uniform(type, 16), {64 * kMiB}, 1);
  const std::vector<Token> tokens = tiny_tokens([] {
    std::string text;
    for (int i = 0; i < 260; ++i) text += i % 3 ? "the old king " : "went into the forest. ";
    return text;
  }());
  const int64_t n_tokens = 5 * 128 + 7;
  std::vector<float> all;
  const auto read = [&](int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at += step_tokens) {
      const int64_t n = std::min(step_tokens, to - at);
      const int32_t last = static_cast<int32_t>(n) - 1;
      const auto logits = evaluator->append(
          std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), {&last, 1});
      ASSERT_TRUE(logits.ok());
      all.insert(all.end(), logits->begin(), logits->end());
    }
  };
  read(0, n_tokens);
  // Back as far as the window allows, and on again.
  const int64_t back = evaluator->cache().min_rewind(evaluator->sequence());
  EXPECT_TRUE(evaluator->cache().rewind(evaluator->sequence(), back).ok());
  read(back, n_tokens);
  return all;
}

TEST(Poison, RowsThatNoQueryReadsMayHoldAnything) {
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0, KvType::q6_0,
                            KvType::q5_0, KvType::q4_0}) {
    for (const int64_t step_tokens : {int64_t{1}, int64_t{33}, int64_t{150}}) {
      PoisoningDevice poisoning;
      const std::vector<float> poisoned = run(poisoning, type, step_tokens);
      const std::vector<float> plain = run(cpu_device(), type, step_tokens);
      ASSERT_GT(poisoning.poisoned_rows(), 0);
      ASSERT_EQ(poisoned.size(), plain.size());
      EXPECT_EQ(std::memcmp(poisoned.data(), plain.data(), plain.size() * sizeof(float)), 0)
          << kv_type_name(type) << ", steps of " << step_tokens;
    }
  }
}

}  // namespace
}  // namespace weir
