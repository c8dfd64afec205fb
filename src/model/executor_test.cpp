#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "kv/kv_cache.h"
#include "model/model.h"
#include "model/testing/small_model.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing::small_model;
using testing::TemporaryFolder;

class ExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Model>> model = Model::load(small_model(folder_), {});
    ASSERT_TRUE(model.ok()) << model.error().message();
    model_ = std::move(*model);
    layout_ = *make_layout(model_->geometry(), KvFormat::uniform(KvType::f32));
    device_ = make_cpu_device();
    Result<std::unique_ptr<KvCache>> cache =
        KvCache::create(layout_, budget_, device_->memory(),
                        {.address_space = {1 << 26}, .max_context = 4096, .extent = {}});
    ASSERT_TRUE(cache.ok()) << cache.error().message();
    cache_ = std::move(*cache);
    executor_ = std::make_unique<Executor>(*model_, *device_, 1);
    seq_ = cache_->create_sequence();
  }

  Step plan(int64_t n) {
    const StepItem item{seq_, n};
    Result<Step> step = cache_->plan_step(std::span(&item, 1));
    EXPECT_TRUE(step.ok()) << step.status().message();
    return std::move(step).value();
  }
  std::vector<float> room(size_t rows) const {
    return std::vector<float>(rows * static_cast<size_t>(model_->n_vocab()), NAN);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Model> model_;
  KvLayout layout_;
  Budget budget_{{1 << 26}};
  std::unique_ptr<KvDevice> device_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Executor> executor_;
  SeqId seq_{};
};

TEST_F(ExecutorTest, InputThatTheLibraryWouldAbortOnIsRefused) {
  Step step = plan(2);
  const std::vector<int64_t> positions = {0, 1};
  std::vector<float> one = room(1), two = room(2);
  const auto code = [&](std::vector<int32_t> tokens, std::vector<int64_t> at,
                        std::vector<int32_t> wanted, std::span<float> logits) {
    return executor_->compute({tokens, at, wanted}, layout_, step, logits).code();
  };
  EXPECT_EQ(code({5, 400}, positions, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({-1, 5}, positions, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6, 7}, {0, 1, 2}, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, {0}, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, {0, int64_t{1} << 31}, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, {-1, 0}, {1}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, positions, {2}, one), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, positions, {1, 1}, two), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, positions, {1}, two), Code::invalid_input);
  EXPECT_EQ(code({5, 6}, positions, {1}, one), Code::ok);
}

TEST_F(ExecutorTest, FewerOutputsGiveTheSameRows) {
  const std::vector<int32_t> tokens = {2, 300, 301, 302, 303, 304, 305};
  std::vector<int64_t> positions(7);
  for (size_t i = 0; i < 7; ++i) positions[i] = static_cast<int64_t>(i);
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6}, some = {2, 6};
  std::vector<float> whole = room(7), part = room(2);
  {
    Step step = plan(7);
    ASSERT_TRUE(executor_->compute({tokens, positions, all}, layout_, step, whole).ok());
  }  // aborted
  {
    Step step = plan(7);
    ASSERT_TRUE(executor_->compute({tokens, positions, some}, layout_, step, part).ok());
  }
  const auto width = static_cast<size_t>(model_->n_vocab());
  for (size_t i = 0; i < width; ++i) {
    EXPECT_NEAR(part[i], whole[2 * width + i], 1e-4f);
    EXPECT_NEAR(part[width + i], whole[6 * width + i], 1e-4f);
  }
}

TEST_F(ExecutorTest, AStepWithoutOutputsStoresItsTokens) {
  const std::vector<int32_t> tokens = {2, 300, 301, 302};
  const std::vector<int64_t> positions = {0, 1, 2, 3};
  const std::vector<int32_t> none, last = {0};
  std::vector<float> together = room(1), apart = room(1);
  const std::vector<int32_t> end = {3};
  {
    Step step = plan(4);
    ASSERT_TRUE(executor_->compute({tokens, positions, end}, layout_, step, together).ok());
  }
  {
    Step step = plan(3);
    ASSERT_TRUE(executor_
                    ->compute({std::span(tokens).first(3), std::span(positions).first(3), none},
                              layout_, step, {})
                    .ok());
    step.commit();
  }
  Step step = plan(1);
  ASSERT_TRUE(executor_
                  ->compute({std::span(tokens).last(1), std::span(positions).last(1), last},
                            layout_, step, apart)
                  .ok());
  for (size_t i = 0; i < apart.size(); ++i) EXPECT_NEAR(apart[i], together[i], 1e-4f);
  EXPECT_GT(executor_->compute_bytes().v, 0);
}

TEST_F(ExecutorTest, CancelStopsARunningStep) {
  constexpr int64_t kTokens = 2000;
  std::vector<int32_t> tokens(kTokens, 300), none;
  std::vector<int64_t> positions(kTokens);
  for (size_t i = 0; i < kTokens; ++i) positions[i] = static_cast<int64_t>(i);
  Step step = plan(kTokens);
  std::atomic<bool> done{false};
  std::thread canceller([&] {
    while (!done) {
      executor_->cancel();
      std::this_thread::yield();
    }
  });
  const Status status = executor_->compute({tokens, positions, none}, layout_, step, {});
  done = true;
  canceller.join();
  EXPECT_EQ(status.code(), Code::cancelled) << status.message();
  step.abort();

  // The next step is not affected.
  Step again = plan(1);
  std::vector<float> logits = room(1);
  const std::vector<int32_t> row = {0};
  EXPECT_TRUE(executor_
                  ->compute({std::span(tokens).first(1), std::span(positions).first(1), row},
                            layout_, again, logits)
                  .ok());
  EXPECT_TRUE(std::isfinite(logits[0]));
}

}  // namespace
}  // namespace weir
