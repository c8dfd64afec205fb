#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "geometry/kv_layout.h"
#include "kv/tier.h"

namespace weir {

// --- names
// ---------------------------------------------------------------------------------------- A block
// is named by a chain of SHA-256: each link hashes the one before and the block's tokens; the first
// is the root below. Groups of one position share the link.

// Of everything that rows depend on besides tokens and positions. `model` stands for weights,
// tokenizer and kernels: equal strings must mean equal rows. `salt` keeps tenants apart.
Digest root_name(const KvLayout& layout, std::string_view model, std::string_view salt);
Digest name_after(const Digest& parent, std::span<const int32_t> tokens);
// The names after each full block of `tokens`.
std::vector<Digest> chain_names(const Digest& root, std::span<const int32_t> tokens,
                                int block_tokens);

// --- records
// --------------------------------------------------------------------------------------
// Little-endian: "wKVb", u32 record version, u32 layout version, u32 group, i64 index of the block
// in its chain, u32 tokens, u32 CRC-32C of everything else, u64 bytes of the block, 32 bytes name
// of the parent, i32 per token; then the block.

constexpr uint32_t kRecordVersion = 1;

struct RecordHeader {
  uint32_t group = 0;
  int64_t index = 0;
  uint64_t block_bytes = 0;
  Digest parent{};
  std::vector<int32_t> tokens;
  bool operator==(const RecordHeader&) const = default;
};

size_t record_header_bytes(int block_tokens);

std::vector<std::byte> write_record_header(const RecordHeader& header,
                                           std::span<const std::byte> block);
// `bytes` is a whole header. Errors: unsupported (another version), corrupt. The checksum is not
// looked at.
Result<RecordHeader> read_record_header(std::span<const std::byte> bytes);
// Whether `record` is the one expected, to the last bit. Errors: corrupt, unsupported.
Status check_record(RecordBytes record, const RecordHeader& expected);

}  // namespace weir
