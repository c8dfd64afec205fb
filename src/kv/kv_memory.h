#pragma once

#include <cstddef>
#include <memory>

#include "base/bytes.h"
#include "base/status.h"

namespace weir {

// Memory that pools are made of: address space is reserved once, pages are committed on demand and
// handed back. The part of a KV device that kv/ needs. The CPU is the first device.
class KvMemory {
 public:
  virtual ~KvMemory() = default;
  // Address space of `size` bytes, nothing committed, aligned to 2 MiB. Errors: io_error.
  virtual Result<std::byte*> reserve(Bytes size) = 0;
  virtual void unreserve(std::byte* base, Bytes size) = 0;
  // Makes [at, at+size) usable. `huge` asks for 2 MiB pages. Errors: io_error.
  virtual Status commit(std::byte* at, Bytes size, bool huge) = 0;
  // Returns the pages to the system. The contents are lost.
  virtual void decommit(std::byte* at, Bytes size) = 0;
};

// Main memory, through mmap and madvise.
std::unique_ptr<KvMemory> make_cpu_memory();

}  // namespace weir
