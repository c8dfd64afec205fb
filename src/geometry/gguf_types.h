#pragma once

#include <cstdint>

namespace weir {

// A tensor type of the GGUF format: `block` elements take `bytes` bytes.
struct GgufTensorType {
  const char* name;
  int64_t block;
  int64_t bytes;
};

// Null for a number that no type has (or no longer has).
const GgufTensorType* gguf_tensor_type(uint32_t number);

}  // namespace weir
