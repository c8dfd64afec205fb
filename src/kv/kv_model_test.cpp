// Random operations on the KV store against a small obvious model.
//
// WEIR_TEST_SEED=n runs the streams of another seed. A failing stream is shortened and printed as
// C++, to be kept in the list of regressions below.

#include "kv/testing/kv_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "kv/testing/sanitizer.h"
#include "kv/testing/stream_runner.h"

namespace weir {
namespace {

constexpr int kStreams = kIsSanitized ? 60 : 400;
constexpr int kOpsPerStream = 300;

using Runner = StreamRunner<KvModel, OpStream>;

TEST(KvModel, RandomOperationsAgreeWithTheModel) {
  const uint64_t seed = test_seed();
  const KvModel::Stats sum = Runner::run_all(kStreams, seed, [&](int i) {
    return random_stream(seed * 1000003 + static_cast<uint64_t>(i), kOpsPerStream);
  });
  if (HasFailure()) return;
  std::printf(
      "%lld operations, %lld steps, %lld refused, %lld evicted, %lld not held, %lld moved\n",
      static_cast<long long>(sum.ops), static_cast<long long>(sum.steps),
      static_cast<long long>(sum.refused), static_cast<long long>(sum.evicted),
      static_cast<long long>(sum.not_held), static_cast<long long>(sum.shifted));
  EXPECT_EQ(sum.ops, int64_t{kStreams} * kOpsPerStream);
  // Budgets are small enough that memory runs out every few operations.
  EXPECT_GT((sum.refused + sum.evicted) * 12, sum.ops);
  EXPECT_GT(sum.evicted * 50, sum.ops);
  EXPECT_GT(sum.shifted * 50, sum.ops);
  EXPECT_GT(sum.not_held * 100, sum.ops);
}

// Streams that once failed.
TEST(KvModel, RegressionsStayFixed) {
  const std::vector<OpStream> streams = {};
  for (const OpStream& stream : streams) {
    const Runner::Report report = Runner::run(stream, false);
    EXPECT_FALSE(report.has_failed) << report.failure << " in\n" << to_source(stream);
  }
}

}  // namespace
}  // namespace weir
