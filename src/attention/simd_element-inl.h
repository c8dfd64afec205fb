// Elements of stored rows as vectors of f32: the only place that knows the storage types. Included
// once per Highway target.
#if defined(WEIR_ATTENTION_SIMD_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_ATTENTION_SIMD_ELEMENT_INL_H_
#undef WEIR_ATTENTION_SIMD_ELEMENT_INL_H_
#else
#define WEIR_ATTENTION_SIMD_ELEMENT_INL_H_
#endif

#include <cstdint>

#include "base/half.h"
#include "geometry/kv_type.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weir {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: the denominator's sixteen sums and the smallest block are that wide.
using FloatTag = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<FloatTag>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
static_assert(16 % kLanes == 0);

// Register blocks: kBlockRows x kBlockVectors sums, and room for the operands.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kBlockVectors = 4;  // 24 of 32 registers
#else
constexpr int kBlockVectors = 2;  // 12 of 16 registers
#endif
constexpr int kBlockRows = 6;

template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const hwy::float16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const hwy::bfloat16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), from));
}

// Converts n floats, rounding to nearest even.
HWY_INLINE void encode(const float* from, float* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}
HWY_INLINE void encode(const float* from, hwy::float16_t* to, int n) {
  int i = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
  // The processor's conversion rounds to nearest even; Highway's own code elsewhere truncates.
  const FloatTag d;
  const hn::Rebind<hwy::float16_t, FloatTag> d16;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16, to + i);
  }
#endif
  for (; i < n; ++i) to[i].bits = float_to_half(from[i]);
}
HWY_INLINE void encode(const float* from, hwy::bfloat16_t* to, int n) {
  for (int i = 0; i < n; ++i) to[i].bits = float_to_bfloat(from[i]);
}

// The types whose elements share a scale; see kv/quantized_block.h. A tag: there is no such
// element.
template <int kIntegerBits>
struct Quantized {
  static constexpr int kBits = kIntegerBits;
};
template <class T>
concept QuantizedType = requires { T::kBits; };

// Picks F<Element>::run for a storage type.
template <template <class> class F>
HWY_INLINE decltype(&F<float>::run) for_type(KvType type) {
  switch (type) {
    case KvType::f32:
      return &F<float>::run;
    case KvType::f16:
      return &F<hwy::float16_t>::run;
    case KvType::bf16:
      return &F<hwy::bfloat16_t>::run;
    case KvType::q8_0:
      return &F<Quantized<8>>::run;
    case KvType::q6_0:
      return &F<Quantized<6>>::run;
    case KvType::q5_0:
      return &F<Quantized<5>>::run;
    case KvType::q4_0:
      return &F<Quantized<4>>::run;
  }
  WEIR_CHECK(!"a KV type without kernels");
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace weir
HWY_AFTER_NAMESPACE();
#endif
