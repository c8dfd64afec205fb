// A decoder as plainly as it can be written: one token after another, every key and value
// kept, double precision, nothing shared with weir's own code but the reader of the file. What weir
// is compared with where llama.cpp does not do what the vendor's code does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "geometry/gguf_reader.h"

namespace weir {

struct ReferenceModel {
  std::string file;  // f32 tensors
  int n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<int64_t> windows;  // one a layer: keys that a query reads; 0: all
  bool neox = false;
  double theta = 1e4;
  bool is_fused = false;        // phi3's tensors
  bool has_post_norms = false;  // exaone4: norms behind attention and feed-forward, not before
  bool has_qk_norms = false;    // per head
  bool rotates_windows_only = false;  // layers without a window know no positions, if any has one
  double eps = 1e-5;
};

class ReferenceForward {
 public:
  using Row = std::vector<double>;

  explicit ReferenceForward(const ReferenceModel& m)
      : m_(m), gguf_(*GgufFile::open(m.file)), keys_(m.n_layers), values_(m.n_layers) {}

  // The logits of every token.
  std::vector<float> logits(const std::vector<int32_t>& tokens) {
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); ++at) {
      Row x = row("token_embd.weight", tokens[at]);
      for (int layer = 0; layer < m_.n_layers; ++layer) step(layer, static_cast<int64_t>(at), x);
      const char* output =
          gguf_.find_tensor("output.weight") ? "output.weight" : "token_embd.weight";
      const Row out = product(output, norm("output_norm.weight", x));
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

 private:
  const float* data(const std::string& name) const {
    return reinterpret_cast<const float*>(gguf_.data(*gguf_.find_tensor(name)).data());
  }
  Row row(const std::string& name, int64_t index) const {
    const int64_t width = gguf_.find_tensor(name)->shape[0];
    const float* from = data(name) + index * width;
    return {from, from + width};
  }
  Row product(const std::string& name, const Row& x) const {
    const GgufTensor& w = *gguf_.find_tensor(name);
    Row y(static_cast<size_t>(w.shape[1]));
    const float* row = data(name);
    for (double& sum : y)
      for (const double element : x) sum += element * *row++;
    return y;
  }
  Row norm(const std::string& name, Row x) const {
    double power = 0;
    for (const double element : x) power += element * element;
    const double factor = 1 / std::sqrt(power / static_cast<double>(x.size()) + m_.eps);
    const float* weight = data(name);
    for (double& element : x) element *= factor * *weight++;
    return x;
  }
  Row norm_heads(const std::string& name, const Row& x) const {
    Row out;
    for (size_t at = 0; at < x.size(); at += static_cast<size_t>(m_.head_dim)) {
      const Row head = norm(name, part(x, at, static_cast<size_t>(m_.head_dim)));
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }
  Row part(const Row& x, size_t first, size_t n) const {
    return {x.begin() + static_cast<ptrdiff_t>(first),
            x.begin() + static_cast<ptrdiff_t>(first + n)};
  }
  void rotate(Row& heads, int64_t position) const {
    const size_t d = static_cast<size_t>(m_.head_dim);
    for (size_t head = 0; head < heads.size(); head += d) {
      for (size_t p = 0; p < d / 2; ++p) {
        const double angle =
            static_cast<double>(position) *
            std::pow(m_.theta, -2.0 * static_cast<double>(p) / static_cast<double>(d));
        double& a = heads[head + (m_.neox ? p : 2 * p)];
        double& b = heads[head + (m_.neox ? p + d / 2 : 2 * p + 1)];
        const double a0 = a;
        a = a0 * std::cos(angle) - b * std::sin(angle);
        b = a0 * std::sin(angle) + b * std::cos(angle);
      }
    }
  }

  void step(int layer, int64_t position, Row& x) {
    const std::string b = "blk." + std::to_string(layer) + ".";
    const Row a = m_.has_post_norms ? x : norm(b + "attn_norm.weight", x);
    const size_t q_width = static_cast<size_t>(m_.n_heads * m_.head_dim);
    const size_t k_width = static_cast<size_t>(m_.n_kv_heads * m_.head_dim);
    Row q, k, v;
    if (m_.is_fused) {
      const Row all = product(b + "attn_qkv.weight", a);
      q = part(all, 0, q_width);
      k = part(all, q_width, k_width);
      v = part(all, q_width + k_width, k_width);
    } else {
      q = product(b + "attn_q.weight", a);
      k = product(b + "attn_k.weight", a);
      v = product(b + "attn_v.weight", a);
    }
    if (m_.has_qk_norms) {
      q = norm_heads(b + "attn_q_norm.weight", q);
      k = norm_heads(b + "attn_k_norm.weight", k);
    }
    if (rotates(layer)) {
      rotate(q, position);
      rotate(k, position);
    }
    keys_[static_cast<size_t>(layer)].push_back(k);
    values_[static_cast<size_t>(layer)].push_back(v);
    const Row o = product(b + "attn_output.weight", attend(layer, position, q));
    add(x, m_.has_post_norms ? norm(b + "post_attention_norm.weight", o) : o);
    const Row f = feed_forward(b, m_.has_post_norms ? x : norm(b + "ffn_norm.weight", x));
    add(x, m_.has_post_norms ? norm(b + "post_ffw_norm.weight", f) : f);
  }

  bool rotates(int layer) const {
    const bool has_windows =
        std::any_of(m_.windows.begin(), m_.windows.end(), [](int64_t w) { return w > 0; });
    return !m_.rotates_windows_only || !has_windows || m_.windows[static_cast<size_t>(layer)] > 0;
  }

  Row attend(int layer, int64_t position, const Row& q) const {
    const std::vector<Row>& keys = keys_[static_cast<size_t>(layer)];
    const std::vector<Row>& values = values_[static_cast<size_t>(layer)];
    const int64_t window = m_.windows[static_cast<size_t>(layer)];
    const size_t d = static_cast<size_t>(m_.head_dim);
    Row out(q.size());
    for (size_t head = 0; head < static_cast<size_t>(m_.n_heads); ++head) {
      const size_t at_kv =
          head * static_cast<size_t>(m_.n_kv_heads) / static_cast<size_t>(m_.n_heads) * d;
      double total = 0;
      for (int64_t j = 0; j <= position; ++j) {
        if (window > 0 && position - j >= window) continue;
        double score = 0;
        for (size_t e = 0; e < d; ++e)
          score += q[head * d + e] * keys[static_cast<size_t>(j)][at_kv + e];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(d)));
        total += weight;
        for (size_t e = 0; e < d; ++e)
          out[head * d + e] += weight * values[static_cast<size_t>(j)][at_kv + e];
      }
      for (size_t e = 0; e < d; ++e) out[head * d + e] /= total;
    }
    return out;
  }

  Row feed_forward(const std::string& b, const Row& x) const {
    Row up = product(b + "ffn_up.weight", x), gate;
    if (m_.is_fused) {
      gate = part(up, 0, up.size() / 2);
      up = part(up, up.size() / 2, up.size() / 2);
    } else {
      gate = product(b + "ffn_gate.weight", x);
    }
    for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
    return product(b + "ffn_down.weight", up);
  }

  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  ReferenceModel m_;
  GgufFile gguf_;
  std::vector<std::vector<Row>> keys_, values_;
};

}  // namespace weir
