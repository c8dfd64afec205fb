#include "kv/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace weir {
namespace {

// Entry (i, j) of the matrix by its definition: the sign is the parity of the bits that i and j
// share.
double entry(size_t i, size_t j, size_t size) {
  return (std::popcount(i & j) % 2 == 0 ? 1.0 : -1.0) / std::sqrt(static_cast<double>(size));
}

TEST(Hadamard, IsTheMatrixOnEveryBlockOfARow) {
  std::minstd_rand random(3);
  std::normal_distribution<float> normal;
  for (const auto& [dim, block] : {std::pair{1, 1},
                                   {2, 2},
                                   {13, 1},
                                   {32, 32},
                                   {64, 64},
                                   {80, 16},
                                   {96, 32},
                                   {192, 64},
                                   {256, 256},
                                   {576, 64}}) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (float& x : row) x = normal(random);
    std::vector<float> turned = row;
    hadamard(std::span<float>(turned));
    std::vector<double> in_double(row.begin(), row.end());
    hadamard(std::span<double>(in_double));
    const auto size = static_cast<size_t>(block);
    double length = 0, turned_length = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      double expected = 0, sizes = 0;
      for (size_t j = 0; j < size; ++j) {
        const float x = row[i / size * size + j];
        expected += entry(i % size, j, size) * x;
        sizes += std::abs(x) / std::sqrt(static_cast<double>(size));
      }
      EXPECT_NEAR(in_double[i], expected, 1e-13 * sizes) << dim << " at " << i;
      // log2(size) additions and a product, of which the factor is rounded, too.
      EXPECT_NEAR(turned[i], expected, (std::log2(size) + 2) * 0x1p-24 * sizes);
      length += row[i] * row[i];
      turned_length += turned[i] * turned[i];
    }
    EXPECT_NEAR(turned_length / length, 1.0, 1e-5);
    hadamard(std::span<float>(turned));
    for (size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(turned[i], row[i], 1e-5) << dim;
  }
}

TEST(Hadamard, SpreadsWhatStandsOut) {
  std::vector<float> row(64);
  row[17] = 8.0f;
  hadamard(std::span<float>(row));
  for (const float x : row) EXPECT_EQ(std::abs(x), 1.0f);
}

}  // namespace
}  // namespace weir
