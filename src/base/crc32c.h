#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weir {

// CRC-32C (Castagnoli) of `bytes` after those that gave `crc`. Finds every burst of up to 32
// changed bits, and others but for one in four billion. Uses the processor's instruction where
// there is one: several GB/s.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The same without that instruction.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace weir
