#include "model/random_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/check.h"

namespace weir {
namespace {

// Elements of a tile: a multiple of every block length, and many more than the elements of a row.
constexpr int64_t kTileElements = int64_t{1} << 19;
constexpr int64_t kQuantizeRow = 4096;

}  // namespace

uint64_t SynthRandom::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float SynthRandom::gaussian() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  // Box-Muller on two uniform numbers, the first in (0, 1].
  const double u = static_cast<double>((next() >> 11) + 1) * 0x1.0p-53;
  const double v = static_cast<double>(next() >> 11) * 0x1.0p-53;
  const double r = std::sqrt(-2.0 * std::log(u));
  spare_ = static_cast<float>(r * std::sin(2.0 * std::numbers::pi * v));
  has_spare_ = true;
  return static_cast<float>(r * std::cos(2.0 * std::numbers::pi * v));
}

bool is_synth_type(ggml_type type) {
  if (type < 0 || type >= GGML_TYPE_COUNT || ggml_quantize_requires_imatrix(type)) return false;
  if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) return true;
  if (type == GGML_TYPE_Q8_1) return false;  // a type of intermediate results
  return ggml_is_quantized(type) && ggml_get_type_traits(type)->from_float_ref != nullptr;
}

const std::vector<std::byte>& RandomTiles::tile(ggml_type type, float scale) {
  std::vector<std::byte>& bytes = tiles_[{type, scale}];
  if (!bytes.empty()) return bytes;
  std::vector<float> numbers(kTileElements);
  for (float& x : numbers) x = scale * random_.gaussian();
  bytes.resize(ggml_row_size(type, kTileElements));
  ggml_quantize_chunk(type, numbers.data(), bytes.data(), 0, kTileElements / kQuantizeRow,
                      kQuantizeRow, nullptr);
  return bytes;
}

void RandomTiles::fill(ggml_type type, float scale, int64_t row_blocks, std::span<std::byte> out) {
  const std::vector<std::byte>& source = tile(type, scale);
  const size_t block_bytes = ggml_type_size(type);
  const size_t tile_blocks = source.size() / block_bytes;
  WEIR_CHECK(out.size() % block_bytes == 0);
  // Four places a row: the chance that two rows are equal is nil, and copies stay long.
  const size_t run = std::clamp<size_t>(static_cast<size_t>(row_blocks) / 4, 1, tile_blocks / 2);
  for (size_t done = 0; done < out.size();) {
    const size_t from = random_.below(tile_blocks - run + 1);
    const size_t bytes = std::min(run * block_bytes, out.size() - done);
    std::memcpy(out.data() + done, source.data() + from * block_bytes, bytes);
    done += bytes;
  }
}

}  // namespace weir
