// Random operations on named sequences and the prefix index against a small obvious model.
//
// WEIR_TEST_SEED=n runs the streams of another seed. A failing stream is shortened and printed as
// C++, to be kept in the list of regressions below.
#include "kv/testing/prefix_model.h"

#include <gtest/gtest.h>

#include "kv/testing/sanitizer.h"
#include "kv/testing/stream_runner.h"

namespace weir {
namespace {

using Runner = StreamRunner<PrefixModel, PrefixStream>;

constexpr int kStreams = kIsSanitized ? 60 : 2000;
constexpr int kOpsPerStream = 500;

TEST(PrefixModel, RandomOperationsAgreeWithTheModel) {
  const uint64_t seed = test_seed();
  const PrefixModel::Stats sum = Runner::run_all(kStreams, seed, [&](int i) {
    return random_prefix_stream(seed * 1000003 + static_cast<uint64_t>(i), kOpsPerStream);
  });
  if (HasFailure()) return;
  std::printf(
      "%lld operations, %lld steps, %lld refused, %lld evicted, %lld matched, %lld healed, "
      "%lld lost something\n",
      static_cast<long long>(sum.ops), static_cast<long long>(sum.steps),
      static_cast<long long>(sum.refused), static_cast<long long>(sum.evicted),
      static_cast<long long>(sum.matched), static_cast<long long>(sum.healed),
      static_cast<long long>(sum.missed));
  std::printf(
      "%lld loads waited for or not, %lld brought something, %lld failed, %lld records "
      "written, %lld processes\n",
      static_cast<long long>(sum.loads), static_cast<long long>(sum.brought),
      static_cast<long long>(sum.failed_loads), static_cast<long long>(sum.written),
      static_cast<long long>(sum.restarts));
  EXPECT_EQ(sum.ops, int64_t{kStreams} * kOpsPerStream);
  // The streams do what they are for: budgets are small enough that something often goes (6 to 8
  // of a hundred operations, by the seed), and starts find something.
  EXPECT_GT(sum.evicted * 20, sum.ops);
  EXPECT_GT(sum.matched * 40, sum.ops);
  EXPECT_GT(sum.healed * 400, sum.ops);
  EXPECT_GT(sum.missed * 50, sum.ops);
  EXPECT_GT(sum.loads * 50, sum.ops);
  EXPECT_GT(sum.brought * 800, sum.ops);
  EXPECT_GT(sum.failed_loads * 2000, sum.ops);
  EXPECT_GT(sum.written * 40, sum.ops);
  EXPECT_GT(sum.restarts * 500, sum.ops);
}

// Streams that once failed.
TEST(PrefixModel, RegressionsStayFixed) {
  const std::vector<PrefixStream> streams = {};
  for (const PrefixStream& stream : streams) {
    const Runner::Report report = Runner::run(stream, false);
    EXPECT_FALSE(report.has_failed) << report.failure << " in\n" << to_source(stream);
  }
}

}  // namespace
}  // namespace weir
