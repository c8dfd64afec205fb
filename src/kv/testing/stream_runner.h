#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace weir {

// Runs streams of operations against a model, and shortens those that fail. A Model is made from a
// Stream, has run(ops) -> optional failure, stats(), and a trivially copyable Stats with +=.
template <typename Model, typename Stream>
class StreamRunner {
 public:
  struct Report {
    typename Model::Stats stats;
    bool has_failed = true;
    char failure[200] = "the process ended";
  };

  // In a child process, because a broken invariant aborts, and a stream is run again to shorten it.
  static Report run(const Stream& stream, bool is_quiet) {
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
  static Stream shrink(Stream stream) {
    drop_operations(stream);
    for (size_t i = 0; i < stream.ops.size(); ++i) {
      for (size_t arg = 0; arg < 4; ++arg) reduce(stream, i, arg);
    }
    return stream;
  }

  // Runs n streams that make(i) gives; fails the test with the first one that fails, shortened.
  template <typename Make>
  static typename Model::Stats run_all(int n, uint64_t seed, Make make) {
    typename Model::Stats sum;
    for (int i = 0; i < n; ++i) {
      const Stream stream = make(i);
      const Report report = run(stream, false);
      if (report.has_failed) {
        const Stream shortest = shrink(stream);
        ADD_FAILURE() << "stream " << i << " of seed " << seed << ": " << report.failure
                      << "; shortened to " << shortest.ops.size() << " operations ("
                      << run(shortest, false).failure << "):\n"
                      << to_source(shortest);
        return sum;
      }
      sum += report.stats;
    }
    return sum;
  }

 private:
  static Report run_here(const Stream& stream) {
    Report report;
    Model model(stream);
    const std::optional<std::string> failure = model.run(stream.ops);
    report.stats = model.stats();
    report.has_failed = failure.has_value();
    std::snprintf(report.failure, sizeof report.failure, "%s", failure.value_or("").c_str());
    return report;
  }

  static bool still_fails(const Stream& stream) { return run(stream, true).has_failed; }

  static void drop_operations(Stream& stream) {
    for (size_t part = stream.ops.size() / 2; part > 0; part /= 2) {
      for (size_t at = 0; at + part <= stream.ops.size();) {
        Stream shorter = stream;
        const auto begin = shorter.ops.begin() + static_cast<ptrdiff_t>(at);
        shorter.ops.erase(begin, begin + static_cast<ptrdiff_t>(part));
        if (still_fails(shorter)) {
          stream = std::move(shorter);
        } else {
          at += part;
        }
      }
    }
  }

  static void reduce(Stream& stream, size_t i, size_t arg) {
    const uint16_t value = stream.ops[i].args[arg];
    for (const int smaller : {0, 1, 2, 3, value % 16, value % 256}) {
      if (smaller >= value) continue;
      Stream reduced = stream;
      reduced.ops[i].args[arg] = static_cast<uint16_t>(smaller);
      if (!still_fails(reduced)) continue;
      stream = std::move(reduced);
      return;
    }
  }
};

inline uint64_t test_seed() {
  const char* seed = std::getenv("WEIR_TEST_SEED");
  const uint64_t value = seed ? std::strtoull(seed, nullptr, 10) : 1;
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

}  // namespace weir
