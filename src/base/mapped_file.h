#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace weir {

// A regular file mapped read-only; unmapped when destroyed. Move-only; the bytes stay where they
// are when it moves.
class MappedFile {
 public:
  // Errors name the path: not_found, invalid_input (a directory, a pipe), io_error.
  static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace weir
