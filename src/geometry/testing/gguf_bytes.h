#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "geometry/builtin.h"
#include "geometry/gguf_reader.h"

namespace weir {

// Writes a GGUF file in memory, for tests: also wrong ones.
class GgufBytes {
 public:
  explicit GgufBytes(uint32_t version = 3) : version_(version) {}

  GgufBytes& u32(const std::string& key, uint32_t value) {
    return put_key(key, GgufValueType::u32).put(keys_, value);
  }
  GgufBytes& f32(const std::string& key, float value) {
    return put_key(key, GgufValueType::f32).put(keys_, value);
  }
  GgufBytes& boolean(const std::string& key, bool value) {
    return put_key(key, GgufValueType::boolean).put(keys_, static_cast<uint8_t>(value));
  }
  GgufBytes& string(const std::string& key, const std::string& value) {
    return put_key(key, GgufValueType::string).put_string(keys_, value);
  }
  GgufBytes& bools(const std::string& key, const std::vector<bool>& values) {
    put_array(key, GgufValueType::boolean, values.size());
    for (const bool v : values) put(keys_, static_cast<uint8_t>(v));
    return *this;
  }
  GgufBytes& i32s(const std::string& key, const std::vector<int32_t>& values) {
    put_array(key, GgufValueType::i32, values.size());
    for (const int32_t v : values) put(keys_, v);
    return *this;
  }
  GgufBytes& f32s(const std::string& key, const std::vector<float>& values) {
    put_array(key, GgufValueType::f32, values.size());
    for (const float v : values) put(keys_, v);
    return *this;
  }
  GgufBytes& strings(const std::string& key, const std::vector<std::string>& values) {
    put_array(key, GgufValueType::string, values.size());
    for (const std::string& v : values) put_string(keys_, v);
    return *this;
  }
  // A key of any type with the bytes given.
  GgufBytes& raw(const std::string& key, uint32_t type, const std::string& bytes) {
    put_key(key, static_cast<GgufValueType>(type));
    keys_ += bytes;
    return *this;
  }
  // A tensor with data of zeros, placed behind the last one.
  GgufBytes& tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type = 0) {
    const GgufTensorType* facts = gguf_tensor_type(type);
    int64_t elements = 1;
    for (const int64_t d : shape) elements *= d;
    tensor_at(name, shape, type, data_bytes_);
    const int64_t bytes = facts ? elements / facts->block * facts->bytes : 0;
    data_bytes_ = (data_bytes_ + static_cast<uint64_t>(bytes) + 31) / 32 * 32;
    return *this;
  }
  // An f32 tensor of one row with these numbers.
  GgufBytes& floats(const std::string& name, const std::vector<float>& values) {
    contents_.emplace_back(data_bytes_, std::string(reinterpret_cast<const char*>(values.data()),
                                                    values.size() * sizeof(float)));
    return tensor(name, {static_cast<int64_t>(values.size())});
  }
  // A tensor's entry only.
  GgufBytes& tensor_at(const std::string& name, const std::vector<int64_t>& shape, uint32_t type,
                       uint64_t offset) {
    ++n_tensors_;
    put_string(tensors_, name).put(tensors_, static_cast<uint32_t>(shape.size()));
    for (const int64_t d : shape) put(tensors_, d);
    return put(tensors_, type).put(tensors_, offset);
  }

  std::string bytes() const {
    std::string out = "GGUF";
    append(out, version_);
    append(out, n_tensors_);
    append(out, n_keys_);
    out += keys_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    const size_t data = out.size();
    out.resize(data + data_bytes_);
    for (const auto& [at, content] : contents_) out.replace(data + at, content.size(), content);
    return out;
  }

 private:
  template <typename T>
  static void append(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename T>
  GgufBytes& put(std::string& out, T value) {
    append(out, value);
    return *this;
  }
  GgufBytes& put_string(std::string& out, const std::string& text) {
    append(out, static_cast<uint64_t>(text.size()));
    out += text;
    return *this;
  }
  GgufBytes& put_key(const std::string& key, GgufValueType type) {
    ++n_keys_;
    return put_string(keys_, key).put(keys_, static_cast<uint32_t>(type));
  }
  void put_array(const std::string& key, GgufValueType element, size_t count) {
    put_key(key, GgufValueType::array).put(keys_, static_cast<uint32_t>(element));
    put(keys_, static_cast<uint64_t>(count));
  }

  uint32_t version_;
  uint64_t n_keys_ = 0, n_tensors_ = 0, data_bytes_ = 0;
  std::string keys_, tensors_;
  std::vector<std::pair<uint64_t, std::string>> contents_;  // of tensors that are not zero
};

inline std::span<const std::byte> as_bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The metadata that a converter writes for a model of the built-in list: with a pattern array only
// where the family's converter writes one.
inline GgufBytes gguf_like(const ModelFacts& m) {
  const std::string a = m.gguf_arch + ".";
  GgufBytes g;
  g.string("general.architecture", m.gguf_arch).string("general.name", m.name);
  g.u32(a + "context_length", static_cast<uint32_t>(m.max_context));
  g.u32(a + "embedding_length", static_cast<uint32_t>(m.n_embd));
  g.u32(a + "block_count", static_cast<uint32_t>(m.n_layers + m.n_mtp_layers));
  if (m.n_mtp_layers) g.u32(a + "nextn_predict_layers", static_cast<uint32_t>(m.n_mtp_layers));

  const LayerKindFacts& first = m.global ? *m.global : *m.local;
  const LayerKindFacts& local = m.local ? *m.local : first;
  const auto per_kind = [&](const char* key, int of_global, int of_local) {
    if (of_global == of_local) {
      g.u32(a + key, static_cast<uint32_t>(of_global));
      return;
    }
    std::vector<int32_t> values;
    for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) {
      values.push_back(m.is_global(i) ? of_global : of_local);
    }
    g.i32s(a + key, values);
  };
  per_kind("attention.head_count", first.n_head, local.n_head);
  per_kind("attention.head_count_kv", first.n_head_kv, local.n_head_kv);
  g.u32(a + "attention.key_length", static_cast<uint32_t>(first.head_dim_k));
  g.u32(a + "attention.value_length", static_cast<uint32_t>(first.head_dim_v));
  if (local.head_dim_k != first.head_dim_k) {
    g.u32(a + "attention.key_length_swa", static_cast<uint32_t>(local.head_dim_k));
    g.u32(a + "attention.value_length_swa", static_cast<uint32_t>(local.head_dim_v));
  }
  const bool writes_array = m.gguf_arch == "gemma3n" || m.gguf_arch == "gemma4" ||
                            m.gguf_arch == "mimo2" || m.gguf_arch == "step35";
  if (m.window && m.gguf_arch != "llama4" && m.gguf_arch != "llama") {
    g.u32(a + "attention.sliding_window", static_cast<uint32_t>(*m.window));
  }
  if (writes_array) {
    std::vector<bool> is_local;
    for (int i = 0; i < m.n_layers + m.n_mtp_layers; ++i) is_local.push_back(!m.is_global(i));
    g.bools(a + "attention.sliding_window_pattern", is_local);
  }
  if (m.v_from_k_global) {
    // Divisors of frequencies: all but infinite for pairs that do not rotate.
    std::vector<float> divisors(static_cast<size_t>(first.head_dim_k / 2), 1e30f);
    for (int p = 0; p < first.rope_dims.value_or(0) / 2; ++p) divisors[static_cast<size_t>(p)] = 1;
    g.floats("rope_freqs.weight", divisors);
  }
  int n_reusing = 0;
  for (int i = 0; i < m.n_layers; ++i) n_reusing += m.kv_source[static_cast<size_t>(i)] != i;
  if (m.gguf_arch == "gemma4" || m.gguf_arch == "gemma3n") {
    g.u32(a + "attention.shared_kv_layers", static_cast<uint32_t>(n_reusing));
  }
  for (int i = 0; i < m.n_layers; ++i) {
    if (m.kv_source[static_cast<size_t>(i)] != i) continue;
    const std::string block = "blk." + std::to_string(i) + ".";
    g.tensor(block + "attn_k.weight", {1});
    if (!(m.is_global(i) && m.v_from_k_global)) g.tensor(block + "attn_v.weight", {1});
  }
  return g;
}

}  // namespace weir
