#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace weir {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const auto failed = [&](Code code, const std::string& why) {
    return Status(code, "cannot read '" + path + "': " + why);
  };
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const bool missing = error == ENOENT || error == ENOTDIR;
    return failed(missing ? Code::not_found : Code::io_error, std::strerror(error));
  }
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  void* base = nullptr;
  int error = known ? 0 : errno;
  const bool regular = known && S_ISREG(info.st_mode);
  if (regular && info.st_size > 0) {
    base = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) return failed(Code::io_error, std::strerror(error));
  if (!regular) return failed(Code::invalid_input, "it is not a regular file");
  return MappedFile(
      {static_cast<const std::byte*>(base), base ? static_cast<size_t>(info.st_size) : 0});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace weir
