#include "attention/testing_case.h"

#include <algorithm>

namespace weir::testing {

// A query as it meets stored rows: what a K tile has of a key, and, where keys are made of V rows,
// what V has. Kernels turn in f32: how far each turned element may be off.
struct SplitQuery {
  std::vector<double> of_k, of_v;
  double k_error = 0, v_error = 0;
};

// Gives how far each element may be off in f32.
double turn(std::vector<double>& x) {
  const size_t n = x.size() & (~x.size() + 1);
  double sum = 0;
  for (const double element : x) sum += std::abs(element);
  hadamard(std::span<double>(x));
  const auto size = static_cast<double>(n);
  return (std::log2(size) + 3) * 0x1p-24 * sum / std::sqrt(size);
}

SplitQuery split_query(const Case& c, const std::vector<float>& query) {
  SplitQuery q;
  const std::vector<float> k = k_tile_row(c, query);
  q.of_k.assign(k.begin(), k.end());
  const int half = c.shape.k_rotating / 2, middle = c.shape.k_dim / 2;
  for (int d = 0; half > 0 && d < c.shape.k_dim; ++d) {
    q.of_v.push_back(d % middle < half ? 0.0 : double{query[d]} * c.params.key_factors[d]);
  }
  if (c.shape.k_rotated) q.k_error = turn(q.of_k);
  if (c.shape.v_rotated && half > 0) q.v_error = turn(q.of_v);
  return q;
}

// Of one row, with its tolerance: see below.
void turn_back(std::vector<double>& value, std::vector<double>& tolerance) {
  const size_t n = value.size() & (~value.size() + 1);
  const double rounding = (std::log2(static_cast<double>(n)) + 2) * 0x1p-24;
  for (size_t at = 0; at < value.size(); at += n) {
    double sum = 0;
    for (size_t i = at; i < at + n; ++i) sum += tolerance[i] + rounding * std::abs(value[i]);
    for (size_t i = at; i < at + n; ++i) tolerance[i] = sum / std::sqrt(static_cast<double>(n));
  }
  hadamard(std::span<double>(value));
}

// Where the tolerance comes from, with u = 2^-24 and every fused multiply-add counted as two
// roundings (a processor may not fuse):
// - a score is a chain of n products: off by at most (2 n + 6) u sum|q k|, the 6 for the
//   scale, softcap's division and factors of key elements; tanh is good to 8u, times the cap;
// - a turned element of the query is a sum of log2(n) levels, times a factor;
// - quantized keys and values, integer times scale, are exact in f32;
// - p = exp(s - m): the subtraction adds u|s - m|, exp itself 4u; each merge of parts rescales by
// an
//   exponential (4u and u times the gap) and rounds twice. Together a relative error w of each p;
// - w enters numerator and denominator, which add rounding of their n terms.
// - turning the result back sums a block of n errors with signs, over sqrt(n), and rounds log2(n)
//   sums and a product with a rounded factor.
// Errors of the maximum itself cancel: numerator and denominator share it.
Truth truth_of(const Case& c) {
  constexpr double u = 0x1p-24;
  Truth truth;
  const double scale = c.params.scale, cap = c.params.softcap;
  const int heads = c.shape.n_heads / c.shape.n_kv_heads;
  const auto stored = [&](int id, int64_t row, int head, What what) {
    std::vector<float> x = row_of(c, id, row, head, what);
    if (what == What::k) x = k_tile_row(c, x);
    if (what == What::k ? c.shape.k_rotated : c.shape.v_rotated) hadamard(std::span<float>(x));
    std::vector<std::byte> tile(x.size() * 16 * sizeof(float));
    const Codec& codec = codec_of(what == What::k ? c.shape.k_type : c.shape.v_type);
    codec.encode_v(tile.data(), 16, 0, x);
    codec.decode_v(tile.data(), 16, 0, x);
    return x;
  };
  for (size_t i = 0; i < c.rows.size(); ++i) {
    const Rows& r = c.rows[i];
    const int64_t lowest = Storage::lowest_row(c, i), end = r.n_past + r.n_new;
    std::vector<std::vector<std::vector<float>>> ks(c.shape.n_kv_heads), vs(c.shape.n_kv_heads);
    for (int h = 0; h < c.shape.n_kv_heads; ++h) {
      for (int64_t row = lowest; row < end; ++row) {
        ks[h].push_back(stored(r.id, row, h, What::k));
        vs[h].push_back(stored(r.id, row, h, What::v));
      }
    }
    for (int64_t t = 0; t < r.n_new; ++t) {
      const int64_t last = r.n_past + t;
      const int64_t first =
          r.first_visible.empty() ? first_visible(c.retention, last) : r.first_visible[t];
      for (int h = 0; h < c.shape.n_heads; ++h) {
        const SplitQuery q = split_query(c, row_of(c, r.id, last, h, What::q));
        std::vector<double> s;
        double score_error = 0;
        for (int64_t row = first; row <= last; ++row) {
          const auto& own = ks[h / heads][row - lowest];
          const auto& of_v = vs[h / heads][row - lowest];
          double dot = 0, size = 0, turned = 0;
          const auto add = [&](double product) {
            dot += product * scale;
            size += std::abs(product * scale);
          };
          for (size_t d = 0; d < own.size(); ++d) {
            add(q.of_k[d] * own[d]);
            turned += q.k_error * std::abs(own[d]) * scale;
          }
          for (size_t d = 0; d < q.of_v.size(); ++d) {
            add(q.of_v[d] * of_v[d]);
            turned += q.v_error * std::abs(of_v[d]) * scale;
          }
          s.push_back(cap != 0 ? cap * std::tanh(dot / cap) : dot);
          score_error = std::max(
              score_error, (2 * c.shape.chain_length() + 6) * u * size + turned + 8 * u * cap);
        }
        double max = *std::max_element(s.begin(), s.end());
        double range = max - *std::min_element(s.begin(), s.end());
        double denom = 0;
        if (c.params.sinks) {
          const double sink = c.params.sinks[h];
          range = std::max(max, sink) - std::min(max - range, sink);
          max = std::max(max, sink);
          denom = std::exp(sink - max);
        }
        std::vector<double> sum(c.shape.v_dim), size(c.shape.v_dim);
        for (int64_t row = first; row <= last; ++row) {
          const double p = std::exp(s[row - first] - max);
          denom += p;
          const auto& v = vs[h / heads][row - lowest];
          for (int d = 0; d < c.shape.v_dim; ++d) {
            sum[d] += p * v[d];
            size[d] += p * std::abs(v[d]);
          }
        }
        const double n = static_cast<double>(last - first + 1);
        const double parts = static_cast<double>(last / kPartRows - first / kPartRows + 1);
        const double w = std::expm1(score_error + u * range * (parts + 2) + (8 + 8 * parts) * u);
        std::vector<double> value(c.shape.v_dim), tolerance(c.shape.v_dim);
        for (int d = 0; d < c.shape.v_dim; ++d) {
          value[d] = sum[d] / denom;
          tolerance[d] = (2 * w + 2 * (2 * n + 4 * parts + 4) * u) * size[d] / denom + 1e-37;
        }
        if (c.shape.v_rotated) turn_back(value, tolerance);
        truth.value.insert(truth.value.end(), value.begin(), value.end());
        truth.tolerance.insert(truth.tolerance.end(), tolerance.begin(), tolerance.end());
      }
    }
  }
  return truth;
}

std::string first_error(const Truth& truth, const std::vector<float>& result) {
  if (truth.value.size() != result.size()) return "wrong size";
  for (size_t i = 0; i < result.size(); ++i) {
    if (std::abs(result[i] - truth.value[i]) <= truth.tolerance[i]) continue;
    return "element " + std::to_string(i) + ": " + std::to_string(result[i]) + ", not " +
           std::to_string(truth.value[i]) + " +- " + std::to_string(truth.tolerance[i]);
  }
  return "";
}

}  // namespace weir::testing
