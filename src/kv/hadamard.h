#pragma once

#include <span>

namespace weir {

// Turns a row by a Hadamard matrix, in place: every element becomes a sum of all, with signs, over
// the square root of their number. What stands out in a row is spread over it, so that a scale for
// 32 elements fits all of them better. Orthogonal, and its own inverse: q·k and lengths stay.
//
// A matrix of this kind has a power of two of rows: the row is cut into blocks of the largest that
// divides its size (192 = 3 x 64, 80 = 5 x 16), each turned by itself. The sums are made in a fixed
// order: the same bits on every processor.
void hadamard(std::span<float> row);
void hadamard(std::span<double> row);

}  // namespace weir
