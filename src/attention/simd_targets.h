#pragma once

// Which of Highway's targets the kernels are compiled for: AVX-512, AVX2 with FMA, NEON, and
// portable code for all else. SSE has neither fused products nor half floats, and vectors whose
// length only the running processor knows cannot be held in arrays. Instead of hwy/targets.h.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#include <hwy/targets.h>
