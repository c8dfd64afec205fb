#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "geometry/gguf_types.h"

namespace weir {

// Value types, numbered as in the format.
enum class GgufValueType : uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};
const char* gguf_value_type_name(GgufValueType type);

// One value as it lies in the file; reading happens on demand, so that a vocabulary of a million
// strings costs nothing.
struct GgufValue {
  GgufValueType type{};             // array: see element_type
  GgufValueType element_type{};     // of an array
  uint64_t count = 1;               // elements of an array
  std::span<const std::byte> data;  // the encoded value, lengths of type and count not included

  bool is_array() const { return type == GgufValueType::array; }
};

struct GgufTensor {
  std::string name;
  int n_dims = 0;
  std::array<int64_t, 4> shape{1, 1, 1, 1};  // shape[0] elements a row; unused ones are 1
  uint32_t type = 0;                         // ggml's type number
  const GgufTensorType* type_facts = nullptr;
  uint64_t file_offset = 0;  // of the first data byte from the start of the file
  uint64_t bytes = 0;        // of data; file_offset + bytes lies inside the file

  int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// Metadata and tensor list of a GGUF file (version 2 or 3, little endian). Whatever the bytes are,
// reading them ends in a value or one clear line; time and memory are linear in the file's header.
// A file that opens has unique keys and tensor names, and every tensor's data lies inside it,
// aligned, without overlap.
class GgufFile {
 public:
  // Maps the file. Errors name it: not_found, io_error, corrupt, unsupported.
  static Result<GgufFile> open(const std::string& path);
  // Reads from memory that outlives the object.
  static Result<GgufFile> parse(std::span<const std::byte> bytes);

  uint32_t version() const { return version_; }
  Bytes alignment() const { return {static_cast<int64_t>(alignment_)}; }
  std::span<const std::byte> bytes() const { return bytes_; }

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  const GgufValue* find(std::string_view key) const;

  // Typed access: nothing if the key is absent. Errors (corrupt) name the key, what it holds and
  // what was expected.
  Result<std::optional<int64_t>> integer(std::string_view key) const;  // any integer type
  Result<std::optional<double>> number(std::string_view key) const;    // integer or float
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> string(std::string_view key) const;
  // A scalar (one element) or an array of integers or booleans of at most `max_count`.
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key,
                                                       uint64_t max_count) const;
  // The same for integers and floats.
  Result<std::optional<std::vector<double>>> numbers(std::string_view key,
                                                     uint64_t max_count) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order
  const GgufTensor* find_tensor(std::string_view name) const;
  std::span<const std::byte> data(const GgufTensor& tensor) const {
    return bytes_.subspan(tensor.file_offset, tensor.bytes);
  }

 private:
  friend class GgufParser;
  MappedFile mapping_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace weir
