#include "model/weight_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ggml-backend.h"

namespace weir {
namespace {

constexpr size_t kHugePageBytes = 2 * static_cast<size_t>(kMiB);

uintptr_t round_up_to(uintptr_t value, uintptr_t unit) { return (value + unit - 1) / unit * unit; }

// Only whole 2 MiB pages inside the range can be huge.
void ask_for_huge_pages(void* base, size_t size) {
  const uintptr_t begin = round_up_to(reinterpret_cast<uintptr_t>(base), kHugePageBytes);
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(base) + size) / kHugePageBytes * kHugePageBytes;
  // A system without huge pages refuses; the memory is as good as before.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

WeightMemory WeightMemory::borrow(std::span<const std::byte> bytes) {
  WeightMemory memory;
  memory.buffer_ =
      ggml_backend_cpu_buffer_from_ptr(const_cast<std::byte*>(bytes.data()), bytes.size());
  ggml_backend_buffer_set_usage(memory.buffer_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  return memory;
}

Result<WeightMemory> WeightMemory::allocate(Bytes size) {
  WeightMemory memory;
  // Room to start on a 2 MiB boundary and end on one.
  const size_t needed = round_up_to(static_cast<size_t>(size.v), kHugePageBytes);
  memory.own_size_ = needed + kHugePageBytes;
  void* own = ::mmap(nullptr, memory.own_size_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (own == MAP_FAILED)
    return Status(Code::io_error,
                  "no memory for " + format_bytes(size) + " of weights: " + std::strerror(errno));
  memory.own_ = own;
  auto* base =
      reinterpret_cast<void*>(round_up_to(reinterpret_cast<uintptr_t>(own), kHugePageBytes));
  ask_for_huge_pages(base, needed);
  memory.buffer_ = ggml_backend_cpu_buffer_from_ptr(base, needed);
  ggml_backend_buffer_set_usage(memory.buffer_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  return memory;
}

WeightMemory WeightMemory::adopt(ggml_backend_buffer* buffer, bool huge_pages) {
  WeightMemory memory;
  memory.buffer_ = buffer;
  ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  if (huge_pages)
    ask_for_huge_pages(ggml_backend_buffer_get_base(buffer), ggml_backend_buffer_get_size(buffer));
  return memory;
}

WeightMemory::WeightMemory(WeightMemory&& other) noexcept { *this = std::move(other); }

WeightMemory& WeightMemory::operator=(WeightMemory&& other) noexcept {
  std::swap(buffer_, other.buffer_);
  std::swap(own_, other.own_);
  std::swap(own_size_, other.own_size_);
  return *this;
}

WeightMemory::~WeightMemory() {
  if (buffer_) ggml_backend_buffer_free(buffer_);
  if (own_) ::munmap(own_, own_size_);
}

std::byte* WeightMemory::base() const {
  return static_cast<std::byte*>(ggml_backend_buffer_get_base(buffer_));
}

void drop_mapped_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = round_up_to(reinterpret_cast<uintptr_t>(bytes.data()), page);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace weir
