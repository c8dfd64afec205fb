#include "kv/codec.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "base/half.h"

namespace weir {
namespace {

struct F32 {
  using Stored = float;
  static Stored encode(float value) { return value; }
  static float decode(Stored stored) { return stored; }
};

struct F16 {
  using Stored = uint16_t;
  static Stored encode(float value) { return float_to_half(value); }
  static float decode(Stored stored) { return half_to_float(stored); }
};

struct BF16 {
  using Stored = uint16_t;
  static Stored encode(float value) { return float_to_bfloat(value); }
  static float decode(Stored stored) { return bfloat_to_float(stored); }
};

// Rows of independent elements. Tiles start at any multiple of an element's size, inside memory
// that holds nothing else, so they are read and written as elements.
template <typename Type>
class FloatCodec final : public Codec {
  using Stored = typename Type::Stored;

 public:
  void encode_k(std::byte* tile, int block_tokens, int row,
                std::span<const float> in) const override {
    Stored* at = elements(tile) + row;
    for (size_t d = 0; d < in.size(); ++d)
      at[d * static_cast<size_t>(block_tokens)] = Type::encode(in[d]);
  }
  void decode_k(const std::byte* tile, int block_tokens, int row,
                std::span<float> out) const override {
    const Stored* at = elements(tile) + row;
    for (size_t d = 0; d < out.size(); ++d)
      out[d] = Type::decode(at[d * static_cast<size_t>(block_tokens)]);
  }
  void encode_v(std::byte* tile, int, int row, std::span<const float> in) const override {
    Stored* at = elements(tile) + static_cast<size_t>(row) * in.size();
    for (size_t d = 0; d < in.size(); ++d) at[d] = Type::encode(in[d]);
  }
  void decode_v(const std::byte* tile, int, int row, std::span<float> out) const override {
    const Stored* at = elements(tile) + static_cast<size_t>(row) * out.size();
    for (size_t d = 0; d < out.size(); ++d) out[d] = Type::decode(at[d]);
  }
  void copy_k(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row,
              int block_tokens, int dim) const override {
    const Stored* from = elements(from_tile) + from_row;
    Stored* to = elements(to_tile) + to_row;
    for (ptrdiff_t i = 0; i < ptrdiff_t{dim} * block_tokens; i += block_tokens) to[i] = from[i];
  }
  void copy_v(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row, int,
              int dim) const override {
    const size_t row_bytes = static_cast<size_t>(dim) * sizeof(Stored);
    std::memmove(to_tile + static_cast<size_t>(to_row) * row_bytes,
                 from_tile + static_cast<size_t>(from_row) * row_bytes, row_bytes);
  }

 private:
  static Stored* elements(std::byte* tile) { return reinterpret_cast<Stored*>(tile); }
  static const Stored* elements(const std::byte* tile) {
    return reinterpret_cast<const Stored*>(tile);
  }
};

const Codec* find_codec(KvType type) {
  static const FloatCodec<F32> f32;
  static const FloatCodec<F16> f16;
  static const FloatCodec<BF16> bf16;
  switch (type) {
    case KvType::f32:
      return &f32;
    case KvType::f16:
      return &f16;
    case KvType::bf16:
      return &bf16;
    case KvType::q8_0:
    case KvType::q6_0:
    case KvType::q5_0:
    case KvType::q4_0:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

Status check_codec(KvType type) {
  if (find_codec(type)) return {};
  return Status(Code::unsupported, std::string("KV type ") + kv_type_name(type) +
                                       " cannot be stored yet; use f16, bf16 or f32");
}

const Codec& codec_of(KvType type) {
  const Codec* codec = find_codec(type);
  WEIR_CHECK(codec != nullptr);
  return *codec;
}

}  // namespace weir
