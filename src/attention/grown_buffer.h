#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "base/bytes.h"
#include "kv/pool_extent.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace weir {

// Memory that is only ever replaced by more of it; the contents are then lost. Large ones ask for
// huge pages.
class GrownBuffer {
 public:
  GrownBuffer() = default;
  ~GrownBuffer() { std::free(data_); }
  GrownBuffer(const GrownBuffer&) = delete;
  GrownBuffer& operator=(const GrownBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // True if the memory moved.
  bool grow(int64_t bytes) {
    if (bytes <= bytes_) return false;
    const int64_t unit = bytes >= kHugePage.v ? kHugePage.v : 64;
    std::free(data_);
    bytes_ = round_up(bytes, unit);
    data_ = static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(unit), static_cast<size_t>(bytes_)));
    if (!data_) {
      bytes_ = 0;
      throw std::bad_alloc();
    }
#if defined(__linux__)
    // Advice only: without huge pages everything works, a little slower.
    if (unit == kHugePage.v) madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
#endif
    return true;
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace weir
