// geometry/: what a model's KV costs. KvGeometry, the window arithmetic, the layout of a block and
// the readers that find all this in a GGUF file, a config.json or the built-in list. No model
// library, no memory: only arithmetic.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace weir {

// How one K or V row (the elements of one token and one head) is stored.
enum class KvType : uint8_t { f32, f16, bf16, q8_0, q6_0, q5_0, q4_0 };

// Elements that share one scale; a row is a multiple of it. 1 for the float types.
int64_t kv_type_block(KvType type);

// Bytes of `elements` consecutive elements, a multiple of kv_type_block(type).
// q8_0 34, q6_0 26, q5_0 22, q4_0 18 bytes for 32 elements (a f16 scale and the integers).
int64_t kv_row_bytes(KvType type, int64_t elements);

// Whether rows are turned by a Hadamard rotation before they are stored, see kv/hadamard.h.
// automatic: those of types below 8 bits, which it helps (docs/codecs.md).
enum class KvRotation : uint8_t { automatic, on, off };
bool is_rotated(KvType type, KvRotation rotation);
const char* kv_rotation_name(KvRotation rotation);  // auto, on, off
// Errors: invalid_input.
Result<KvRotation> parse_kv_rotation(std::string_view name);

const char* kv_type_name(KvType type);
// Errors: invalid_input, naming the known types.
Result<KvType> parse_kv_type(std::string_view name);

}  // namespace weir
