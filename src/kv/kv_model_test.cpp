// Random operations on the KV store against a small obvious model.
//
// WEIR_TEST_SEED=n runs the streams of another seed. A failing stream is shortened and printed as
// C++, to be kept in the list of regressions below.

#include "kv/testing/kv_model.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kv/testing/sanitizer.h"

namespace weir {
namespace {

constexpr int kStreams = kIsSanitized ? 60 : 400;
constexpr int kOpsPerStream = 300;

struct Report {
  KvModel::Stats stats;
  bool has_failed = true;
  char failure[200] = "the process ended";
};

Report run_here(const OpStream& stream) {
  Report report;
  KvModel model(stream);
  const std::optional<std::string> failure = model.run(stream.ops);
  report.stats = model.stats();
  report.has_failed = failure.has_value();
  std::snprintf(report.failure, sizeof report.failure, "%s", failure.value_or("").c_str());
  return report;
}

// In a child process, because a broken invariant aborts, and a stream is run again to shorten it.
Report run(const OpStream& stream, bool is_quiet) {
  int ends[2];
  WEIR_CHECK(pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  WEIR_CHECK(child >= 0);
  if (child == 0) {
    if (is_quiet) WEIR_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
    const Report report = run_here(stream);
    WEIR_CHECK(write(ends[1], &report, sizeof report) == sizeof report);
    _exit(0);
  }
  close(ends[1]);
  Report report, received;
  if (read(ends[0], &received, sizeof received) == sizeof received) report = received;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return report;
}

// Fewer operations that still fail, then smaller arguments.
OpStream shrink(OpStream stream) {
  const auto still_fails = [](const OpStream& s) { return run(s, true).has_failed; };
  for (size_t part = stream.ops.size() / 2; part > 0; part /= 2) {
    for (size_t at = 0; at + part <= stream.ops.size();) {
      OpStream shorter = stream;
      const auto begin = shorter.ops.begin() + static_cast<ptrdiff_t>(at);
      shorter.ops.erase(begin, begin + static_cast<ptrdiff_t>(part));
      if (still_fails(shorter)) {
        stream = std::move(shorter);
      } else {
        at += part;
      }
    }
  }
  for (size_t i = 0; i < stream.ops.size(); ++i) {
    for (size_t arg = 0; arg < 4; ++arg) {
      for (const int smaller :
           {0, 1, 2, 3, stream.ops[i].args[arg] % 16, stream.ops[i].args[arg] % 256}) {
        if (smaller >= stream.ops[i].args[arg]) continue;
        OpStream reduced = stream;
        reduced.ops[i].args[arg] = static_cast<uint16_t>(smaller);
        if (!still_fails(reduced)) continue;
        stream = std::move(reduced);
        break;
      }
    }
  }
  return stream;
}

uint64_t test_seed() {
  const char* seed = std::getenv("WEIR_TEST_SEED");
  return seed ? std::strtoull(seed, nullptr, 10) : 1;
}

TEST(KvModel, RandomOperationsAgreeWithTheModel) {
  const uint64_t seed = test_seed();
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  KvModel::Stats sum;
  for (int i = 0; i < kStreams; ++i) {
    const OpStream stream = random_stream(seed * 1000003 + static_cast<uint64_t>(i), kOpsPerStream);
    const Report report = run(stream, false);
    if (report.has_failed) {
      const OpStream shortest = shrink(stream);
      FAIL() << "stream " << i << " of seed " << seed << ": " << report.failure << "; shortened to "
             << shortest.ops.size() << " operations (" << run(shortest, false).failure << "):\n"
             << to_source(shortest);
    }
    sum.ops += report.stats.ops;
    sum.steps += report.stats.steps;
    sum.refused += report.stats.refused;
    sum.evicted += report.stats.evicted;
    sum.not_held += report.stats.not_held;
    sum.shifted += report.stats.shifted;
  }
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
    const Report report = run(stream, false);
    EXPECT_FALSE(report.has_failed) << report.failure << " in\n" << to_source(stream);
  }
}

}  // namespace
}  // namespace weir
