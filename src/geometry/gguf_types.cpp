#include "geometry/gguf_types.h"

#include <array>

namespace weir {
namespace {

// Indexed by ggml's type number. Sizes follow from the block layouts: for example q4_K holds 256
// elements as two f16 scales, 12 bytes of 6-bit scales and 128 bytes of 4-bit values.
constexpr std::array<GgufTensorType, 43> kTypes = {{
    {"f32", 1, 4},        {"f16", 1, 2},       {"q4_0", 32, 18},     {"q4_1", 32, 20},
    {nullptr, 0, 0},      {nullptr, 0, 0},     {"q5_0", 32, 22},     {"q5_1", 32, 24},
    {"q8_0", 32, 34},     {"q8_1", 32, 36},    {"q2_K", 256, 84},    {"q3_K", 256, 110},
    {"q4_K", 256, 144},   {"q5_K", 256, 176},  {"q6_K", 256, 210},   {"q8_K", 256, 292},
    {"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74}, {"iq3_xxs", 256, 98}, {"iq1_s", 256, 50},
    {"iq4_nl", 32, 18},   {"iq3_s", 256, 110}, {"iq2_s", 256, 82},   {"iq4_xs", 256, 136},
    {"i8", 1, 1},         {"i16", 1, 2},       {"i32", 1, 4},        {"i64", 1, 8},
    {"f64", 1, 8},        {"iq1_m", 256, 56},  {"bf16", 1, 2},       {nullptr, 0, 0},
    {nullptr, 0, 0},      {nullptr, 0, 0},     {"tq1_0", 256, 54},   {"tq2_0", 256, 66},
    {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"mxfp4", 32, 17},
    {"nvfp4", 64, 36},    {"q1_0", 128, 18},   {"q2_0", 64, 18},
}};

}  // namespace

const GgufTensorType* gguf_tensor_type(uint32_t number) {
  if (number >= kTypes.size() || !kTypes[number].name) return nullptr;
  return &kTypes[number];
}

}  // namespace weir
