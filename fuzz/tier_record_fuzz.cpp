// Any bytes as a tier's record: refused with one line, or exactly what its parts write again. The
// first two bytes say how many of the rest are the header.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kv/tier_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  if (size < 2) return 0;
  const auto all = std::as_bytes(std::span(data, size));
  const size_t n_header = std::min(size - 2, static_cast<size_t>(data[0] | data[1] << 8));
  const RecordBytes record{all.subspan(2, n_header), all.subspan(2 + n_header)};
  const Result<RecordHeader> header = read_record_header(record.header);
  if (!header) {
    WEIR_CHECK(!header.error().message().empty() && header.error().message().size() < 300);
    return 0;
  }
  WEIR_CHECK(record.header.size() == record_header_bytes(static_cast<int>(header->tokens.size())));
  RecordHeader other = *header;
  ++other.index;
  WEIR_CHECK(!check_record(record, other).ok());
  if (!check_record(record, *header).ok()) return 0;
  const std::vector<std::byte> again = write_record_header(*header, record.block);
  WEIR_CHECK(std::ranges::equal(again, record.header));
  return 0;
}
