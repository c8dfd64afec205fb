#pragma once

#include <cstring>

#include "geometry/gguf_reader.h"

namespace weir {

// Reads plain values from bytes; a read past the end fails and changes nothing.
class ByteCursor {
 public:
  explicit ByteCursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  bool read(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  bool take(uint64_t n, std::span<const std::byte>& out) {
    if (left() < n) return false;
    out = bytes_.subspan(at_, n);
    at_ += n;
    return true;
  }
  // A string: u64 length, then that many bytes.
  bool read_string(std::string_view& text) {
    const uint64_t start = at_;
    uint64_t length = 0;
    std::span<const std::byte> data;
    if (!read(length) || !take(length, data)) {
      at_ = start;
      return false;
    }
    text = {reinterpret_cast<const char*>(data.data()), data.size()};
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

// Encoded size of a fixed-size value type; 0 for string and array.
uint64_t gguf_value_size(GgufValueType type);

// Fills a GgufFile from bytes: header, then keys, then tensors.
class GgufParser {
 public:
  explicit GgufParser(std::span<const std::byte> bytes) : cursor_(bytes) { file_.bytes_ = bytes; }

  Status run();
  GgufFile take() { return std::move(file_); }

 private:
  Status read_header();
  Status read_key_value(uint64_t number);
  Status read_value(std::string_view key, GgufValue& value);
  Status read_alignment();
  Status read_tensor(uint64_t number);
  Status place_tensors();

  ByteCursor cursor_;
  GgufFile file_;
  uint64_t n_keys_ = 0;
  uint64_t n_tensors_ = 0;
};

}  // namespace weir
