#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "geometry/kv_geometry.h"

namespace weir {

// Random operations on named sequences and the prefix index, for prefix_model.h. As in op_stream.h
// arguments are raw numbers, and any list of operations is valid.

enum class PrefixOpKind : uint8_t {
  start,   // a sequence on what is known of a prompt, healing included
  cold,    // a sequence from nothing
  read,    // goes on with its prompt, up to the end of a rebuilding
  decode,  // one token
  draft,   // a step of which not all is accepted
  abort,   // a step that does not happen
  cross,   // a step over the end of a rebuilding: refused
  mark,    // a restart point here
  latest,  // the moving restart point on or off
  rewind,
  fork,
  finish,  // becomes idle
  shift,   // its positions move: unnamed, then gone
  pin,
  unpin,
  drop,      // the end of a chain
  budget,    // a new limit
  pressure,  // bytes of others under the same budget
  fit,       // evict to the limit
  flush,     // evict everything idle
  quota,
  close,       // a namespace, and open another
  tier_write,  // what would be evicted next
  demote,      // a whole chain
  tier_poll,
  tier_load,   // begins
  tier_bring,  // a load from its beginning to its end
  tier_end,    // of a load that began before
  tier_fault,  // something becomes wrong with the tier, or all is well again
  restart,     // of the process: another store over the same tier
};
constexpr int kPrefixOpKinds = 30;

struct PrefixOp {
  PrefixOpKind kind{};
  std::array<uint16_t, 4> args{};
};

struct PrefixStream {
  std::array<uint8_t, 8> config{};
  std::vector<PrefixOp> ops;
};

struct PrefixConfig {
  int block_tokens = 4;
  int layers = 1;  // per group
  std::vector<Retention> groups;
  int64_t extents = 0;  // of the budget, 4 KiB each
  uint64_t hash_mask = UINT64_MAX;
  int64_t ghosts = 0;
  int64_t spare_extents = 0;
  bool has_random_policy = false;
  bool has_quotas = false;
  int tier_delay = 0;  // polls
  int64_t write_buffer = 0;
};

inline PrefixConfig decode_config(const PrefixStream& stream) {
  const std::array<uint8_t, 8>& bytes = stream.config;
  PrefixConfig config;
  const int B = config.block_tokens = std::array{4, 1, 16, 4}[bytes[0] % 4];
  const std::array<int64_t, 7> windows = {1, 2, B - 1, B, B + 1, 3 * B + 1, 1000};
  const auto sliding = [&](uint8_t byte) {
    return Retention{LayerKind::sliding, std::max<int64_t>(1, windows[byte % 7])};
  };
  const Retention chunked{LayerKind::chunked,
                          std::array<int64_t, 3>{B, 4 * B, B + 3}[bytes[3] % 3]};
  const Retention global{LayerKind::global, 0};
  switch (bytes[4] % 8) {
    case 0:
      config.groups = {global};
      break;
    case 1:
      config.groups = {sliding(bytes[1])};
      break;
    case 2:
      config.groups = {global, chunked};
      break;
    case 3:
      config.groups = {global, sliding(bytes[1]), chunked};
      break;
    case 4:
      config.groups = {global, sliding(bytes[1]), sliding(bytes[3])};
      break;
    case 5:
      // Global layers after local ones: what a rebuilding computes for them is wrong at first.
      config.groups = {sliding(bytes[1]), global};
      break;
    default:
      config.groups = {global, sliding(bytes[1])};
      break;
  }
  config.layers = 1 + bytes[2] % 3;
  config.extents = static_cast<int64_t>(config.groups.size()) + 2 + bytes[5] % 16;
  if (bytes[6] % 4 == 0) config.hash_mask = 3;
  config.ghosts = bytes[6] % 3 == 0 ? 0 : 16;
  config.spare_extents = bytes[5] / 16 % 3;
  config.has_random_policy = bytes[7] % 2 == 0;
  config.has_quotas = bytes[7] % 4 == 1;
  config.tier_delay = bytes[7] / 16 % 4 * 2;
  config.write_buffer = bytes[6] / 16 % 4 == 0 ? 3000 : 0;
  return config;
}

inline PrefixStream random_prefix_stream(uint64_t seed, int n_ops) {
  // How often an operation comes.
  constexpr std::array<int, kPrefixOpKinds> kWeights = {42, 6,  48, 21, 12, 6, 3, 18, 6, 9,
                                                        9,  27, 3,  6,  6,  3, 3, 3,  3, 5,
                                                        3,  3,  8,  3,  10, 3, 8, 3,  3, 1};
  std::mt19937_64 random(seed);
  std::discrete_distribution<int> kinds(kWeights.begin(), kWeights.end());
  PrefixStream stream;
  for (uint8_t& byte : stream.config) byte = static_cast<uint8_t>(random() >> 32);
  for (int i = 0; i < n_ops; ++i) {
    PrefixOp& op = stream.ops.emplace_back();
    op.kind = static_cast<PrefixOpKind>(kinds(random));
    for (uint16_t& arg : op.args) arg = static_cast<uint16_t>(random() >> 32);
  }
  return stream;
}

// C++ that makes the same stream, to be pasted into a test.
inline std::string to_source(const PrefixStream& stream) {
  constexpr std::array<const char*, kPrefixOpKinds> kNames = {
      "start",     "cold",      "read",       "decode",   "draft",      "abort",
      "cross",     "mark",      "latest",     "rewind",   "fork",       "finish",
      "shift",     "pin",       "unpin",      "drop",     "budget",     "pressure",
      "fit",       "flush",     "quota",      "close",    "tier_write", "demote",
      "tier_poll", "tier_load", "tier_bring", "tier_end", "tier_fault", "restart"};
  std::ostringstream out;
  out << "PrefixStream{.config = {";
  for (const uint8_t byte : stream.config) out << int{byte} << ", ";
  out << "},\n         .ops = {\n";
  for (const PrefixOp& op : stream.ops) {
    out << "  {PrefixOpKind::" << kNames[static_cast<size_t>(op.kind)] << ", {" << op.args[0]
        << ", " << op.args[1] << ", " << op.args[2] << ", " << op.args[3] << "}},\n";
  }
  out << "}}\n";
  return out.str();
}

}  // namespace weir
