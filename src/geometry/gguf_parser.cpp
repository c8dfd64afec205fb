#include "geometry/gguf_parser.h"

#include <algorithm>
#include <bit>

#include "base/quote.h"

namespace weir {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in the file");

// The shortest encodings: a key-value is a key length, one character, a type and one byte; a
// tensor a name length, a dimension count, a type and an offset.
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;
constexpr uint64_t kMaxNameBytes = 1024;

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

Status truncated(const std::string& what) {
  return corrupt("the file ends inside " + what + ": it is truncated or damaged; get it again");
}

}  // namespace

uint64_t gguf_value_size(GgufValueType type) {
  switch (type) {
    case GgufValueType::u8:
    case GgufValueType::i8:
    case GgufValueType::boolean:
      return 1;
    case GgufValueType::u16:
    case GgufValueType::i16:
      return 2;
    case GgufValueType::u32:
    case GgufValueType::i32:
    case GgufValueType::f32:
      return 4;
    case GgufValueType::u64:
    case GgufValueType::i64:
    case GgufValueType::f64:
      return 8;
    case GgufValueType::string:
    case GgufValueType::array:
      return 0;
  }
  return 0;
}

Status GgufParser::run() {
  if (Status s = read_header(); !s.ok()) return s;
  for (uint64_t i = 0; i < n_keys_; ++i) {
    if (Status s = read_key_value(i); !s.ok()) return s;
  }
  if (Status s = read_alignment(); !s.ok()) return s;
  for (uint64_t i = 0; i < n_tensors_; ++i) {
    if (Status s = read_tensor(i); !s.ok()) return s;
  }
  return place_tensors();
}

Status GgufParser::read_header() {
  char magic[4];
  if (!cursor_.read(magic)) return corrupt("not a GGUF file: it is shorter than a header");
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    return corrupt("not a GGUF file: it starts with " + quote({magic, 4}) + " instead of 'GGUF'");
  }
  if (!cursor_.read(file_.version_)) return truncated("the header");
  if (file_.version_ != 2 && file_.version_ != 3) {
    const bool swapped = file_.version_ == 0x02000000 || file_.version_ == 0x03000000;
    return Status(Code::unsupported,
                  swapped ? "the GGUF file is big-endian; weir reads little-endian files"
                          : "GGUF version " + std::to_string(file_.version_) +
                                " is not supported; weir reads versions 2 and 3");
  }
  if (!cursor_.read(n_tensors_) || !cursor_.read(n_keys_)) return truncated("the header");
  if (n_keys_ > cursor_.left() / kMinKeyValueBytes) {
    return corrupt("the header announces " + std::to_string(n_keys_) +
                   " metadata keys, more than the file can hold");
  }
  if (n_tensors_ > cursor_.left() / kMinTensorBytes) {
    return corrupt("the header announces " + std::to_string(n_tensors_) +
                   " tensors, more than the file can hold");
  }
  return {};
}

Status GgufParser::read_key_value(uint64_t number) {
  std::string_view key;
  if (!cursor_.read_string(key)) {
    return truncated("metadata key " + std::to_string(number + 1) + " of " +
                     std::to_string(n_keys_));
  }
  if (key.empty() || key.size() > kMaxNameBytes) {
    return corrupt("metadata key " + std::to_string(number + 1) + " has a name of " +
                   std::to_string(key.size()) + " bytes");
  }
  GgufValue value;
  if (Status s = read_value(key, value); !s.ok()) return s;
  if (!file_.values_.emplace(key, value).second) {
    return corrupt("the metadata key " + quote(key) + " appears twice");
  }
  return {};
}

Status GgufParser::read_value(std::string_view key, GgufValue& value) {
  uint32_t type = 0;
  if (!cursor_.read(type)) return truncated("metadata key " + quote(key));
  const auto known = [](uint32_t t) { return t <= static_cast<uint32_t>(GgufValueType::f64); };
  if (!known(type)) {
    return corrupt("metadata key " + quote(key) + " has the unknown type " + std::to_string(type));
  }
  value.type = value.element_type = static_cast<GgufValueType>(type);
  if (value.is_array()) {
    uint32_t element = 0;
    if (!cursor_.read(element) || !cursor_.read(value.count)) {
      return truncated("metadata key " + quote(key));
    }
    if (!known(element) || static_cast<GgufValueType>(element) == GgufValueType::array) {
      return corrupt("metadata key " + quote(key) + " is an array of the type " +
                     std::to_string(element) + ", which the format does not have");
    }
    value.element_type = static_cast<GgufValueType>(element);
    const bool strings = value.element_type == GgufValueType::string;
    const uint64_t least = strings ? 8 : gguf_value_size(value.element_type);
    if (value.count > cursor_.left() / least) {
      return corrupt("metadata key " + quote(key) + " announces " + std::to_string(value.count) +
                     " elements, more than the file can hold");
    }
  }
  if (value.element_type != GgufValueType::string) {
    const uint64_t size = value.count * gguf_value_size(value.element_type);
    return cursor_.take(size, value.data) ? Status() : truncated("metadata key " + quote(key));
  }
  const uint64_t start = cursor_.position();
  for (uint64_t i = 0; i < value.count; ++i) {
    std::string_view text;
    if (!cursor_.read_string(text)) return truncated("metadata key " + quote(key));
  }
  value.data = file_.bytes_.subspan(start, cursor_.position() - start);
  return {};
}

Status GgufParser::read_alignment() {
  const Result<std::optional<int64_t>> alignment = file_.integer("general.alignment");
  if (!alignment) return alignment.error();
  if (!*alignment) return {};
  const int64_t a = **alignment;
  // ggml's buffers need 32, which is also the default.
  if (a < 32 || !std::has_single_bit(static_cast<uint64_t>(a)) || a > kGiB) {
    return corrupt("general.alignment is " + std::to_string(a) +
                   "; it must be a power of two, at least 32");
  }
  file_.alignment_ = static_cast<uint64_t>(a);
  return {};
}

Status GgufParser::read_tensor(uint64_t number) {
  std::string_view name;
  uint32_t n_dims = 0;
  const auto cut = [&] {
    return truncated("the entry of tensor " + std::to_string(number + 1) + " of " +
                     std::to_string(n_tensors_));
  };
  if (!cursor_.read_string(name) || !cursor_.read(n_dims)) return cut();
  const std::string label = "tensor " + quote(name);
  if (name.empty() || name.size() > kMaxNameBytes) {
    return corrupt("tensor " + std::to_string(number + 1) + " has a name of " +
                   std::to_string(name.size()) + " bytes");
  }
  if (n_dims > 4) return corrupt(label + " has " + std::to_string(n_dims) + " dimensions");

  GgufTensor tensor;
  tensor.name = name;
  tensor.n_dims = static_cast<int>(n_dims);
  int64_t elements = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    if (!cursor_.read(tensor.shape[d])) return cut();
    if (tensor.shape[d] <= 0 || __builtin_mul_overflow(elements, tensor.shape[d], &elements)) {
      return corrupt(label + " has an impossible shape: dimension " + std::to_string(d) + " is " +
                     std::to_string(tensor.shape[d]));
    }
  }
  if (!cursor_.read(tensor.type) || !cursor_.read(tensor.file_offset)) return cut();
  tensor.type_facts = gguf_tensor_type(tensor.type);
  if (!tensor.type_facts) {
    return Status(Code::unsupported,
                  label + " has the unknown type number " + std::to_string(tensor.type));
  }
  if (tensor.shape[0] % tensor.type_facts->block != 0) {
    return corrupt(label + " has rows of " + std::to_string(tensor.shape[0]) +
                   " elements, not a multiple of " + std::to_string(tensor.type_facts->block) +
                   " as " + tensor.type_facts->name + " needs");
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / tensor.type_facts->block, tensor.type_facts->bytes,
                             &bytes)) {
    return corrupt(label + " has an impossible size");
  }
  tensor.bytes = static_cast<uint64_t>(bytes);
  if (!file_.tensor_index_.emplace(name, file_.tensors_.size()).second) {
    return corrupt(label + " appears twice");
  }
  file_.tensors_.push_back(std::move(tensor));
  return {};
}

// Offsets in the file count from the first aligned byte after the tensor list.
Status GgufParser::place_tensors() {
  const uint64_t a = file_.alignment_;
  const uint64_t start = (cursor_.position() + a - 1) / a * a;
  std::vector<const GgufTensor*> by_offset;
  for (GgufTensor& tensor : file_.tensors_) {
    const std::string label = "tensor " + quote(tensor.name);
    if (tensor.file_offset % a != 0) {
      return corrupt(label + " starts at " + std::to_string(tensor.file_offset) +
                     ", not a multiple of the alignment " + std::to_string(a));
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(tensor.file_offset, start, &tensor.file_offset) ||
        __builtin_add_overflow(tensor.file_offset, tensor.bytes, &end) ||
        end > file_.bytes_.size()) {
      return corrupt("the data of " + label + " lies outside the file (" +
                     std::to_string(file_.bytes_.size()) +
                     " bytes): it is truncated or damaged; get it again");
    }
    by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const GgufTensor* x, const GgufTensor* y) {
    return x->file_offset < y->file_offset;
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    if (by_offset[i - 1]->file_offset + by_offset[i - 1]->bytes > by_offset[i]->file_offset) {
      return corrupt("the data of tensor " + quote(by_offset[i]->name) + " overlaps that of " +
                     quote(by_offset[i - 1]->name));
    }
  }
  return {};
}

}  // namespace weir
