#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "geometry/kv_geometry.h"

namespace weir {

// Random operations on a KV store, for kv_model.h. Arguments are raw numbers that the model reduces
// to what is possible at that point, so that any list of operations is valid: lists can be fuzzed,
// and shortened by dropping operations.

enum class OpKind : uint8_t {
  create,
  step,    // several sequences append several tokens, all accepted
  decode,  // one token for every sequence
  draft,   // a step of which not all is accepted
  abort,   // a step that does not happen
  rewind,
  fork,
  release,
  evictable,
  budget,    // a new limit
  pressure,  // bytes of others under the same budget
  fit,       // evict to the limit
  remove,    // seq_rm
  add,       // seq_add
  divide,    // seq_div
  copy,      // seq_cp
  keep,      // seq_keep
};
constexpr int kOpKinds = 17;

struct Op {
  OpKind kind{};
  std::array<uint16_t, 4> args{};
};

struct OpStream {
  std::array<uint8_t, 8> config{};
  std::vector<Op> ops;
};

struct StreamConfig {
  int block_tokens = 16;
  std::vector<Retention> groups;
  int64_t extents = 0;  // of the budget, 4 KiB each
};

inline StreamConfig decode_config(const std::array<uint8_t, 8>& bytes) {
  StreamConfig config;
  const int B = config.block_tokens = std::array{1, 4, 16, 32, 16, 32}[bytes[0] % 6];
  const std::array<int64_t, 7> windows = {1, 2, B - 1, B, B + 1, 3 * B + 1, 1000};
  const std::array<int64_t, 4> chunks = {B, 4 * B, B + 3, 3};
  const Retention sliding{LayerKind::sliding, std::max<int64_t>(1, windows[bytes[1] % 7])};
  const Retention other =
      bytes[2] % 2 == 0
          ? Retention{LayerKind::chunked, chunks[bytes[3] % 4]}
          : Retention{LayerKind::sliding, std::max<int64_t>(1, windows[bytes[3] % 7])};
  switch (bytes[4] % 6) {
    case 0:
      config.groups = {{LayerKind::global, 0}};
      break;
    case 1:
      config.groups = {sliding};
      break;
    case 2:
      config.groups = {other};
      break;
    case 3:
      config.groups = {{LayerKind::global, 0}, sliding};
      break;
    case 4:
      config.groups = {{LayerKind::global, 0}, other};
      break;
    default:
      config.groups = {{LayerKind::global, 0}, sliding, other};
      break;
  }
  config.extents = static_cast<int64_t>(config.groups.size()) + 1 + bytes[5] % 10;
  return config;
}

// How often an operation comes, in 64ths.
inline OpKind op_kind(uint8_t byte) {
  constexpr std::array<uint8_t, kOpKinds> kWeights = {4, 10, 6, 7, 3, 5, 6, 3, 7,
                                                      1, 1,  1, 3, 4, 1, 1, 1};
  int rest = byte % 64;
  for (int kind = 0; kind < kOpKinds; ++kind) {
    rest -= kWeights[static_cast<size_t>(kind)];
    if (rest < 0) return static_cast<OpKind>(kind);
  }
  return OpKind::step;
}

// Eight bytes of configuration, then nine bytes an operation; the rest is ignored.
inline OpStream decode_stream(const uint8_t* data, size_t size) {
  OpStream stream;
  if (size < stream.config.size()) return stream;
  std::memcpy(stream.config.data(), data, stream.config.size());
  for (size_t at = stream.config.size(); at + 9 <= size; at += 9) {
    Op op{.kind = op_kind(data[at]), .args = {}};
    for (size_t i = 0; i < 4; ++i) {
      op.args[i] = static_cast<uint16_t>(data[at + 1 + 2 * i] | data[at + 2 + 2 * i] << 8);
    }
    stream.ops.push_back(op);
  }
  return stream;
}

inline OpStream random_stream(uint64_t seed, int n_ops) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(8 + 9 * static_cast<size_t>(n_ops));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 32);
  return decode_stream(bytes.data(), bytes.size());
}

// C++ that makes the same stream, to be pasted into a test.
inline std::string to_source(const OpStream& stream) {
  constexpr std::array<const char*, kOpKinds> kNames = {
      "create", "step",     "decode", "draft",  "abort", "rewind", "fork", "release", "evictable",
      "budget", "pressure", "fit",    "remove", "add",   "divide", "copy", "keep"};
  std::ostringstream out;
  out << "OpStream{.config = {";
  for (const uint8_t byte : stream.config) out << int{byte} << ", ";
  out << "},\n         .ops = {\n";
  for (const Op& op : stream.ops) {
    out << "  {OpKind::" << kNames[static_cast<size_t>(op.kind)] << ", {" << op.args[0] << ", "
        << op.args[1] << ", " << op.args[2] << ", " << op.args[3] << "}},\n";
  }
  out << "}}\n";
  return out.str();
}

}  // namespace weir
