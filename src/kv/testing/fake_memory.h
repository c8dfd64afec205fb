// For tests of kv/ and of what uses it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "base/check.h"
#include "kv/kv_memory.h"

namespace weir {

// Heap memory that keeps book: nothing is committed twice, memory that nobody wrote reads as NaN,
// and the k-th commit can be made to fail.
class FakeMemory final : public KvMemory {
 public:
  ~FakeMemory() override { WEIR_CHECK(regions_.empty()); }

  Result<std::byte*> reserve(Bytes size) override {
    if (fail_reserve_) return Status(Code::io_error, "no address space");
    WEIR_CHECK(size.v % kPage == 0);
    auto* base = static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(size.v)));
    WEIR_CHECK(base != nullptr);
    regions_[base] = std::vector<bool>(static_cast<size_t>(size.v / kPage));
    return base;
  }
  void unreserve(std::byte* base, Bytes size) override {
    const auto region = regions_.find(base);
    WEIR_CHECK(region != regions_.end());
    WEIR_CHECK(size.v == static_cast<int64_t>(region->second.size()) * kPage);
    for (const bool is_committed : region->second) WEIR_CHECK(!is_committed);
    regions_.erase(region);
    std::free(base);
  }
  Status commit(std::byte* at, Bytes size, bool) override {
    if (fail_commit_after_ == 0) {
      fail_commit_after_ = -1;
      return Status(Code::io_error, "no memory");
    }
    if (fail_commit_after_ > 0) --fail_commit_after_;
    mark(at, size, true);
    std::memset(at, 0xff, static_cast<size_t>(size.v));
    committed_ += size.v;
    return {};
  }
  void decommit(std::byte* at, Bytes size) override {
    mark(at, size, false);
    std::memset(at, 0xff, static_cast<size_t>(size.v));
    committed_ -= size.v;
  }

  int64_t committed() const { return committed_; }
  void fail_commit_after(int64_t passes) { fail_commit_after_ = passes; }  // negative: never
  bool will_fail_commit() const { return fail_commit_after_ >= 0; }
  void fail_reserve(bool fail) { fail_reserve_ = fail; }

 private:
  static constexpr int64_t kPage = 4096;

  void mark(std::byte* at, Bytes size, bool committed) {
    auto region = regions_.upper_bound(at);
    WEIR_CHECK(region != regions_.begin());
    --region;
    const int64_t first = (at - region->first) / kPage;
    for (int64_t page = first; page < first + size.v / kPage; ++page) {
      WEIR_CHECK(region->second.at(static_cast<size_t>(page)) != committed);
      region->second[static_cast<size_t>(page)] = committed;
    }
  }

  std::map<std::byte*, std::vector<bool>> regions_;  // pages committed
  int64_t committed_ = 0;
  int64_t fail_commit_after_ = -1;
  bool fail_reserve_ = false;
};

}  // namespace weir
