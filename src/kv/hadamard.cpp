#include "kv/hadamard.h"

#include <cmath>
#include <cstddef>

namespace weir {
namespace {

template <typename T>
void turn_block(T* block, size_t size, T factor) {
  for (size_t half = size / 2; half > 0; half /= 2) {
    for (size_t at = 0; at < size; at += 2 * half) {
      T* a = block + at;
      T* b = a + half;
      for (size_t i = 0; i < half; ++i) {
        const T x = a[i], y = b[i];
        a[i] = x + y;
        b[i] = x - y;
      }
    }
  }
  for (size_t i = 0; i < size; ++i) block[i] *= factor;
}

template <typename T>
void turn(std::span<T> row) {
  const size_t size = row.size() & (~row.size() + 1);  // the lowest bit that is set
  if (size < 2) return;
  const T factor = 1 / std::sqrt(static_cast<T>(size));
  for (size_t at = 0; at < row.size(); at += size) turn_block(row.data() + at, size, factor);
}

}  // namespace

void hadamard(std::span<float> row) { turn(row); }
void hadamard(std::span<double> row) { turn(row); }

}  // namespace weir
