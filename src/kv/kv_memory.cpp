#include "kv/kv_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "kv/pool_extent.h"

namespace weir {
namespace {

Status system_error(const char* what, Bytes size) {
  return Status(Code::io_error, std::string("cannot ") + what + " " + format_bytes(size) +
                                    " of KV memory: " + std::strerror(errno));
}

class CpuMemory final : public KvMemory {
 public:
  Result<std::byte*> reserve(Bytes size) override {
    // A little more than asked for, so that an aligned part can be cut out.
    const size_t wanted = static_cast<size_t>(size.v);
    const size_t slack = static_cast<size_t>(kHugePage.v);
    void* mapped = mmap(nullptr, wanted + slack, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return system_error("reserve address space for", size);
    auto* begin = static_cast<std::byte*>(mapped);
    const size_t before = (slack - reinterpret_cast<uintptr_t>(begin) % slack) % slack;
    if (before > 0) munmap(begin, before);
    if (slack - before > 0) munmap(begin + before + wanted, slack - before);
    return begin + before;
  }

  void unreserve(std::byte* base, Bytes size) override {
    munmap(base, static_cast<size_t>(size.v));
  }

  Status commit(std::byte* at, Bytes size, bool huge) override {
    const size_t length = static_cast<size_t>(size.v);
    if (mprotect(at, length, PROT_READ | PROT_WRITE) != 0) return system_error("commit", size);
    // Small extents must not be backed by a 2 MiB page that the accounts do not know of. A kernel
    // without huge pages refuses the advice; then there is nothing to prevent or gain.
    madvise(at, length, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return {};
  }

  void decommit(std::byte* at, Bytes size) override {
    // Stays readable and writable: taking the permission away would split the mapping, and the
    // number of mappings of a process is limited.
    madvise(at, static_cast<size_t>(size.v), MADV_DONTNEED);
  }
};

}  // namespace

std::unique_ptr<KvMemory> make_cpu_memory() { return std::make_unique<CpuMemory>(); }

}  // namespace weir
