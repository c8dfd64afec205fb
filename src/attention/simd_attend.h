#pragma once

#include "attention/kv_device.h"

namespace weir {

// The vector kernels, for the best instruction set that this processor has.
void simd_attend(const AttendArgs& args, int thread, int n_threads);
void simd_store(const StoreArgs& args, int thread, int n_threads);
const char* simd_name();  // for example "AVX3"

}  // namespace weir
