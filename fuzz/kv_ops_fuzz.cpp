// Operation streams on the KV store, against the model of kv/testing/kv_model.h.
#include <cstdio>
#include <cstdlib>

#include "kv/testing/kv_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const weir::OpStream stream = weir::decode_stream(data, size);
  weir::KvModel model(stream);
  if (const auto failure = model.run(stream.ops)) {
    std::fprintf(stderr, "%s, in\n%s", failure->c_str(), weir::to_source(stream).c_str());
    std::abort();
  }
  return 0;
}
