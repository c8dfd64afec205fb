#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "geometry/gguf_reader.h"

struct llama_model;

namespace weir {

struct VocabularyFree {
  void operator()(llama_model* model) const;
};
using Vocabulary = std::unique_ptr<llama_model, VocabularyFree>;

// libllama's tokenizer of `path`, without weights. `file` is the same file: what libllama would
// abort on is found there first. Errors: corrupt naming the key, unsupported with libllama's
// reason.
Result<Vocabulary> load_vocabulary(const GgufFile& file, const std::string& path);

}  // namespace weir
