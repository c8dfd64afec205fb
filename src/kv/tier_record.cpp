#include "kv/tier_record.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/crc32c.h"

namespace weir {
namespace {

constexpr std::string_view kMagic = "wKVb";
constexpr size_t kChecksumAt = 28;
constexpr size_t kFixedBytes = 72;

// Values in little-endian order, one after the other.
class Writer {
 public:
  void number(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void bytes(std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); }
  // With its length in front, so that two texts cannot run into each other.
  void text(std::string_view t) {
    number(t.size(), 8);
    bytes(std::as_bytes(std::span(t)));
  }
  std::vector<std::byte> out;
};

uint64_t number_at(std::span<const std::byte> from, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= std::to_integer<uint64_t>(from[at + i]) << (8 * i);
  }
  return value;
}

void write_group(Writer& out, const KvGroup& group) {
  out.number(static_cast<uint64_t>(group.retention.kind), 1);
  out.number(static_cast<uint64_t>(group.retention.window), 8);
  out.text(kv_type_name(group.k_type));
  out.text(kv_type_name(group.v_type));
  out.number(group.k_rotated, 1);
  out.number(group.v_rotated, 1);
  out.number(static_cast<uint64_t>(group.block_bytes.v), 8);
  out.number(group.layers.size(), 8);
  for (const GroupLayer& layer : group.layers) {
    for (const int64_t fact :
         {int64_t{layer.layer}, int64_t{layer.n_kv_heads}, int64_t{layer.k_dim},
          int64_t{layer.v_dim}, int64_t{layer.k_rotating}, layer.k_offset, layer.v_offset}) {
      out.number(static_cast<uint64_t>(fact), 8);
    }
  }
}

uint32_t checksum(RecordBytes record) {
  const uint32_t before = crc32c(record.header.first(kChecksumAt));
  return crc32c(record.block, crc32c(record.header.subspan(kChecksumAt + 4), before));
}

Status corrupt(std::string what) {
  return Status(Code::corrupt, "a tier's record " + std::move(what));
}

}  // namespace

Digest root_name(const KvLayout& layout, std::string_view model, std::string_view salt) {
  Writer out;
  out.text("weir KV block");
  out.number(kRecordVersion, 4);
  out.number(kLayoutVersion, 4);
  out.text(model);
  out.text(salt);
  out.number(static_cast<uint64_t>(layout.format.block_tokens), 8);
  out.number(layout.groups.size(), 8);
  for (const KvGroup& group : layout.groups) write_group(out, group);
  return sha256(out.out);
}

Digest name_after(const Digest& parent, std::span<const int32_t> tokens) {
  Writer out;
  out.bytes(parent);
  for (const int32_t token : tokens) out.number(static_cast<uint32_t>(token), 4);
  return sha256(out.out);
}

std::vector<Digest> chain_names(const Digest& root, std::span<const int32_t> tokens,
                                int block_tokens) {
  const auto B = static_cast<size_t>(block_tokens);
  std::vector<Digest> names;
  for (size_t at = 0; at + B <= tokens.size(); at += B) {
    names.push_back(name_after(names.empty() ? root : names.back(), tokens.subspan(at, B)));
  }
  return names;
}

size_t record_header_bytes(int block_tokens) {
  return kFixedBytes + sizeof(int32_t) * static_cast<size_t>(block_tokens);
}

std::vector<std::byte> write_record_header(const RecordHeader& header,
                                           std::span<const std::byte> block) {
  Writer out;
  out.bytes(std::as_bytes(std::span(kMagic)));
  out.number(kRecordVersion, 4);
  out.number(kLayoutVersion, 4);
  out.number(header.group, 4);
  out.number(static_cast<uint64_t>(header.index), 8);
  out.number(header.tokens.size(), 4);
  out.number(0, 4);
  out.number(header.block_bytes, 8);
  out.bytes(header.parent);
  for (const int32_t token : header.tokens) out.number(static_cast<uint32_t>(token), 4);
  const uint32_t sum = checksum({out.out, block});
  for (size_t i = 0; i < 4; ++i) out.out[kChecksumAt + i] = static_cast<std::byte>(sum >> (8 * i));
  return std::move(out.out);
}

Result<RecordHeader> read_record_header(std::span<const std::byte> bytes) {
  if (bytes.size() < kFixedBytes) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes, fewer than a header");
  }
  if (!std::ranges::equal(bytes.first(4), std::as_bytes(std::span(kMagic)))) {
    return corrupt("does not begin like one");
  }
  const uint64_t version = number_at(bytes, 4, 4), layout = number_at(bytes, 8, 4);
  if (version != kRecordVersion || layout != kLayoutVersion) {
    return Status(Code::unsupported, "a tier's record has version " + std::to_string(version) +
                                         " of layout " + std::to_string(layout) +
                                         "; this program reads version " +
                                         std::to_string(kRecordVersion) + " of layout " +
                                         std::to_string(kLayoutVersion));
  }
  const uint64_t n_tokens = number_at(bytes, 24, 4);
  if ((bytes.size() - kFixedBytes) / 4 != n_tokens || bytes.size() % 4 != 0) {
    return corrupt("says that it has " + std::to_string(n_tokens) + " tokens, in a header of " +
                   std::to_string(bytes.size()) + " bytes");
  }
  RecordHeader header;
  header.group = static_cast<uint32_t>(number_at(bytes, 12, 4));
  header.index = static_cast<int64_t>(number_at(bytes, 16, 8));
  header.block_bytes = number_at(bytes, 32, 8);
  std::ranges::copy(bytes.subspan(40, header.parent.size()), header.parent.begin());
  for (size_t t = 0; t < n_tokens; ++t) {
    header.tokens.push_back(static_cast<int32_t>(number_at(bytes, kFixedBytes + 4 * t, 4)));
  }
  return header;
}

Status check_record(RecordBytes record, const RecordHeader& expected) {
  const Result<RecordHeader> header = read_record_header(record.header);
  if (!header) return header.error();
  if (*header != expected) return corrupt("is of another block");
  if (record.block.size() != header->block_bytes) {
    return corrupt("has " + std::to_string(record.block.size()) + " bytes of KV, not " +
                   std::to_string(header->block_bytes));
  }
  if (checksum(record) != number_at(record.header, kChecksumAt, 4)) {
    return corrupt("does not match its checksum");
  }
  return {};
}

}  // namespace weir
