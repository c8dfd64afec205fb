#include "geometry/kv_type.h"

#include <array>
#include <string>

#include "base/check.h"

namespace weir {
namespace {

struct TypeFacts {
  const char* name;
  int64_t block;  // elements that share a scale
  int64_t block_bytes;
};

// Indexed by KvType. The integer formats are ggml's: a f16 scale and n bits per element.
constexpr std::array<TypeFacts, 7> kFacts = {{{"f32", 1, 4},
                                              {"f16", 1, 2},
                                              {"bf16", 1, 2},
                                              {"q8_0", 32, 34},
                                              {"q6_0", 32, 26},
                                              {"q5_0", 32, 22},
                                              {"q4_0", 32, 18}}};

const TypeFacts& facts(KvType type) { return kFacts[static_cast<size_t>(type)]; }

}  // namespace

int64_t kv_type_block(KvType type) { return facts(type).block; }

int64_t kv_row_bytes(KvType type, int64_t elements) {
  WEIR_CHECK(elements % facts(type).block == 0);
  return elements / facts(type).block * facts(type).block_bytes;
}

bool is_rotated(KvType type, KvRotation rotation) {
  if (rotation != KvRotation::automatic) return rotation == KvRotation::on;
  return kv_type_block(type) > 1 && facts(type).block_bytes < facts(KvType::q8_0).block_bytes;
}

constexpr std::array<const char*, 3> kRotations = {"auto", "on", "off"};

const char* kv_rotation_name(KvRotation rotation) {
  return kRotations[static_cast<size_t>(rotation)];
}

Result<KvRotation> parse_kv_rotation(std::string_view name) {
  for (size_t i = 0; i < kRotations.size(); ++i) {
    if (name == kRotations[i]) return static_cast<KvRotation>(i);
  }
  return Status(Code::invalid_input,
                "'" + std::string(name) + "' is not a KV rotation; use auto, on or off");
}

const char* kv_type_name(KvType type) { return facts(type).name; }

Result<KvType> parse_kv_type(std::string_view name) {
  std::string known;
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (name == kFacts[i].name) return static_cast<KvType>(i);
    known += known.empty() ? "" : ", ";
    known += kFacts[i].name;
  }
  return Status(Code::invalid_input,
                "'" + std::string(name) + "' is not a KV type; known types: " + known);
}

}  // namespace weir
