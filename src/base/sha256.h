#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace weir {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> bytes);

}  // namespace weir
