#include "model/fingerprint.h"

#include "base/mapped_file.h"
#include "base/sha256.h"

namespace weir {

Result<std::string> model_fingerprint(const std::string& path, const ModelOptions& options) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.error();
  std::string name;
  for (const std::byte b : sha256(file->bytes())) {
    name += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    name += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  // Which set of rope factors a model takes depends on the context it is loaded for.
  name += " context " + std::to_string(options.context);
  if (options.exact) name += " exact";
  if (options.rope_of_llama_cpp) name += " rope of llama.cpp";
  return name;
}

}  // namespace weir
