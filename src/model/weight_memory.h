#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/status.h"

struct ggml_backend_buffer;

namespace weir {

// Memory of weights, as a ggml buffer. Frees itself.
class WeightMemory {
 public:
  // Borrows `bytes` (a mapped file, which must outlive this; start aligned to a page).
  static WeightMemory borrow(std::span<const std::byte> bytes);
  // Fresh memory that asks for 2 MiB pages. Errors: io_error.
  static Result<WeightMemory> allocate(Bytes size);
  // Takes over a buffer of one of ggml's buffer types, asking for 2 MiB pages if `huge_pages`.
  static WeightMemory adopt(ggml_backend_buffer* buffer, bool huge_pages);

  WeightMemory(WeightMemory&& other) noexcept;
  WeightMemory& operator=(WeightMemory&& other) noexcept;
  ~WeightMemory();

  ggml_backend_buffer* buffer() const { return buffer_; }
  std::byte* base() const;

 private:
  WeightMemory() = default;
  ggml_backend_buffer* buffer_ = nullptr;
  void* own_ = nullptr;  // of allocate(): what to unmap
  size_t own_size_ = 0;
};

// Tells the system that the pages of a mapped file are not needed now: they leave this process's
// resident memory and come back when they are read again.
void drop_mapped_pages(std::span<const std::byte> bytes);

}  // namespace weir
