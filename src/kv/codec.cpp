#include "kv/codec.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "kv/quantized_block.h"

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

// Rows of blocks that share a scale. Scales are 2-byte aligned wherever tiles are, but bytes may
// come from anywhere: all is copied.
template <int kBits>
class QuantizedCodec final : public Codec {
  using Block = QuantizedBlock<kBits>;

 public:
  void encode_k(std::byte* tile, int block_tokens, int row,
                std::span<const float> in) const override {
    for (Place at = key(tile, block_tokens, row); !in.empty(); at.next(), in = rest(in)) {
      put(at, quantize<kBits>(in.data()));
    }
  }
  void decode_k(const std::byte* tile, int block_tokens, int row,
                std::span<float> out) const override {
    for (ConstPlace at = key(tile, block_tokens, row); !out.empty(); at.next(), out = rest(out)) {
      dequantize(get(at), out.data());
    }
  }
  void encode_v(std::byte* tile, int block_tokens, int row,
                std::span<const float> in) const override {
    for (Place at = value(tile, block_tokens, row); !in.empty(); at.next(), in = rest(in)) {
      put(at, quantize<kBits>(in.data()));
    }
  }
  void decode_v(const std::byte* tile, int block_tokens, int row,
                std::span<float> out) const override {
    for (ConstPlace at = value(tile, block_tokens, row); !out.empty(); at.next(), out = rest(out)) {
      dequantize(get(at), out.data());
    }
  }
  void copy_k(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row,
              int block_tokens, int dim) const override {
    ConstPlace from = key(from_tile, block_tokens, from_row);
    Place to = key(to_tile, block_tokens, to_row);
    for (int d = 0; d < dim; d += kQuantizedElements, from.next(), to.next()) put(to, get(from));
  }
  void copy_v(const std::byte* from_tile, int from_row, std::byte* to_tile, int to_row,
              int block_tokens, int dim) const override {
    ConstPlace from = value(from_tile, block_tokens, from_row);
    Place to = value(to_tile, block_tokens, to_row);
    for (int d = 0; d < dim; d += kQuantizedElements, from.next(), to.next()) put(to, get(from));
  }

 private:
  // Where one row's scale and integers are in a part of a tile.
  template <typename Byte>
  struct PlaceOf {
    Byte *scale, *bytes;
    ptrdiff_t stride;  // from one of the integers' bytes to the next
    ptrdiff_t part;    // from one part of the tile to the next
    void next() {
      scale += part;
      bytes += part;
    }
  };
  using Place = PlaceOf<std::byte>;
  using ConstPlace = PlaceOf<const std::byte>;

  static constexpr ptrdiff_t kScale = sizeof(Block::scale);
  static constexpr ptrdiff_t part_bytes(ptrdiff_t B) { return B * (kScale + Block::kBytes); }
  template <typename Byte>
  static PlaceOf<Byte> key(Byte* tile, ptrdiff_t B, ptrdiff_t row) {
    return {tile + row * kScale, tile + B * kScale + row, B, part_bytes(B)};
  }
  template <typename Byte>
  static PlaceOf<Byte> value(Byte* tile, ptrdiff_t B, ptrdiff_t row) {
    return {tile + row * kScale, tile + B * kScale + row * Block::kBytes, 1, part_bytes(B)};
  }
  template <typename T>
  static std::span<T> rest(std::span<T> row) {
    return row.subspan(kQuantizedElements);
  }

  static void put(const Place& at, const Block& block) {
    std::memcpy(at.scale, &block.scale, sizeof block.scale);
    for (int i = 0; i < Block::kBytes; ++i) at.bytes[i * at.stride] = std::byte{block.bytes[i]};
  }
  static Block get(const ConstPlace& at) {
    Block block;
    std::memcpy(&block.scale, at.scale, sizeof block.scale);
    for (int i = 0; i < Block::kBytes; ++i) {
      block.bytes[i] = std::to_integer<uint8_t>(at.bytes[i * at.stride]);
    }
    return block;
  }
};

}  // namespace

const Codec& codec_of(KvType type) {
  static const FloatCodec<F32> f32;
  static const FloatCodec<F16> f16;
  static const FloatCodec<BF16> bf16;
  static const QuantizedCodec<8> q8_0;
  static const QuantizedCodec<6> q6_0;
  static const QuantizedCodec<5> q5_0;
  static const QuantizedCodec<4> q4_0;
  switch (type) {
    case KvType::f32:
      return f32;
    case KvType::f16:
      return f16;
    case KvType::bf16:
      return bf16;
    case KvType::q8_0:
      return q8_0;
    case KvType::q6_0:
      return q6_0;
    case KvType::q5_0:
      return q5_0;
    case KvType::q4_0:
      return q4_0;
  }
  WEIR_CHECK(!"a KV type without a codec");
  return f32;
}

}  // namespace weir
