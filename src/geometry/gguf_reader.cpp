#include "geometry/gguf_reader.h"

#include "base/quote.h"
#include "geometry/gguf_parser.h"

namespace weir {
namespace {

bool is_integer(GgufValueType type) {
  switch (type) {
    case GgufValueType::f32:
    case GgufValueType::f64:
    case GgufValueType::boolean:
    case GgufValueType::string:
    case GgufValueType::array:
      return false;
    default:
      return true;
  }
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The integer or boolean at `at`; values above the int64 range become its maximum.
int64_t load_integer(GgufValueType type, const std::byte* at) {
  switch (type) {
    case GgufValueType::u8:
      return load<uint8_t>(at);
    case GgufValueType::i8:
      return load<int8_t>(at);
    case GgufValueType::u16:
      return load<uint16_t>(at);
    case GgufValueType::i16:
      return load<int16_t>(at);
    case GgufValueType::u32:
      return load<uint32_t>(at);
    case GgufValueType::i32:
      return load<int32_t>(at);
    case GgufValueType::i64:
      return load<int64_t>(at);
    case GgufValueType::u64: {
      const uint64_t v = load<uint64_t>(at);
      return v > INT64_MAX ? INT64_MAX : static_cast<int64_t>(v);
    }
    default:
      return load<uint8_t>(at) != 0;
  }
}

bool is_number(GgufValueType type) {
  return is_integer(type) || type == GgufValueType::f32 || type == GgufValueType::f64;
}

double load_number(GgufValueType type, const std::byte* at) {
  if (type == GgufValueType::f32) return load<float>(at);
  if (type == GgufValueType::f64) return load<double>(at);
  return static_cast<double>(load_integer(type, at));
}

Status too_many(std::string_view key, uint64_t count, uint64_t max_count) {
  return Status(Code::corrupt, "metadata key " + quote(key) + " has " + std::to_string(count) +
                                   " elements, more than " + std::to_string(max_count));
}

Status wrong_type(std::string_view key, const GgufValue& value, const char* expected) {
  const std::string found =
      value.is_array() ? std::string("an array of ") + gguf_value_type_name(value.element_type)
                       : std::string(gguf_value_type_name(value.type));
  return Status(Code::corrupt,
                "metadata key " + quote(key) + " holds " + found + " instead of " + expected);
}

}  // namespace

const char* gguf_value_type_name(GgufValueType type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
  GgufParser parser(bytes);
  if (Status s = parser.run(); !s.ok()) return s;
  return parser.take();
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  Result<MappedFile> mapping = MappedFile::open(path);
  if (!mapping) return mapping.error();
  Result<GgufFile> file = parse(mapping->bytes());
  if (!file) return Status(file.error().code(), quote(path) + ": " + file.error().message());
  file->mapping_ = std::move(*mapping);
  return file;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<std::optional<int64_t>> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<int64_t>();
  if (!is_integer(value->type)) return wrong_type(key, *value, "an integer");
  return std::optional(load_integer(value->type, value->data.data()));
}

Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<double>();
  if (!is_number(value->type)) return wrong_type(key, *value, "a number");
  return std::optional(load_number(value->type, value->data.data()));
}

Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<bool>();
  if (value->type != GgufValueType::boolean) return wrong_type(key, *value, "a boolean");
  return std::optional(load_integer(value->type, value->data.data()) != 0);
}

Result<std::optional<std::string>> GgufFile::string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<std::string>();
  if (value->type != GgufValueType::string) return wrong_type(key, *value, "a string");
  std::string_view text;
  WEIR_CHECK(ByteCursor(value->data).read_string(text));
  return std::optional(std::string(text));
}

Result<std::optional<std::vector<int64_t>>> GgufFile::integers(std::string_view key,
                                                               uint64_t max_count) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<std::vector<int64_t>>();
  const GgufValueType type = value->element_type;
  if (!is_integer(type) && type != GgufValueType::boolean) {
    return wrong_type(key, *value, "integers");
  }
  if (value->count > max_count) return too_many(key, value->count, max_count);
  std::vector<int64_t> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers.push_back(load_integer(type, value->data.data() + i * gguf_value_size(type)));
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<double>>> GgufFile::numbers(std::string_view key,
                                                             uint64_t max_count) const {
  const GgufValue* value = find(key);
  if (!value) return std::optional<std::vector<double>>();
  const GgufValueType type = value->element_type;
  if (!is_number(type)) return wrong_type(key, *value, "numbers");
  if (value->count > max_count) return too_many(key, value->count, max_count);
  std::vector<double> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers.push_back(load_number(type, value->data.data() + i * gguf_value_size(type)));
  }
  return std::optional(std::move(numbers));
}

}  // namespace weir
