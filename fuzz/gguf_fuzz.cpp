// Any bytes as a GGUF file: the reader and the geometry must end in a value or one line.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "geometry/gguf_geometry.h"
#include "geometry/gguf_reader.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

void check_message(const Status& s) {
  WEIR_CHECK(!s.message().empty() && s.message().size() < 2000);
  WEIR_CHECK(s.message().find('\n') == std::string::npos);
}

void read_everything(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    WEIR_CHECK(file.find_tensor(tensor.name) == &tensor);
    const auto data = file.data(tensor);
    if (!data.empty())
      sum += static_cast<uint64_t>(data.front()) + static_cast<uint64_t>(data.back());
  }
  for (const auto& [key, value] : file.values()) {
    sum += file.integer(key).ok() + file.number(key).ok() + file.boolean(key).ok() +
           file.string(key).ok() + file.integers(key, 64).ok();
  }
  WEIR_CHECK(sum != UINT64_MAX);  // the reads count
}

void plan(const KvGeometry& geometry) {
  KvFormat format;
  format.block_tokens = choose_block_tokens(geometry);
  const Result<KvPlanner> planner = KvPlanner::create(geometry, format);
  WEIR_CHECK(planner.ok());
  const KvPlan small = planner->plan({.tokens = 1000});
  const KvPlan large = planner->plan({.tokens = 100000000, .n_sequences = 1024});
  WEIR_CHECK(small.total().v >= 0 && small.total() <= large.total());
}

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  const Result<GgufFile> file = GgufFile::parse({reinterpret_cast<const std::byte*>(data), size});
  if (!file) {
    check_message(file.error());
    return 0;
  }
  read_everything(*file);
  const Result<KvGeometry> geometry = geometry_from_gguf(*file);
  if (geometry) {
    plan(*geometry);
  } else {
    check_message(geometry.error());
  }
  return 0;
}
