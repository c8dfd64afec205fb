#include "model/vocabulary.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/library_log.h"
#include "base/quote.h"
#include "llama.h"
#include "model/catch_library_log.h"

namespace weir {
namespace {

Status corrupt(const std::string& what) { return Status(Code::corrupt, what); }

// libllama aborts on a token that occurs twice, and throws while tokenizing when a byte has none.
Status check_tokens(const GgufFile& file) {
  const std::string key = "tokenizer.ggml.tokens";
  const GgufValue* tokens = file.find(key);
  if (!tokens) return corrupt("key " + key + " is missing");
  if (!tokens->is_array() || tokens->element_type != GgufValueType::string || tokens->count == 0)
    return corrupt("key " + key + " is not an array of strings");
  std::unordered_set<std::string> seen;
  seen.reserve(tokens->count);
  const std::byte* at = tokens->data.data();
  for (uint64_t i = 0; i < tokens->count; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, at, sizeof length);
    at += sizeof length;
    std::string text(reinterpret_cast<const char*>(at), length);
    at += length;
    // As libllama sees it: cut at a NUL, and with a name if nothing is left.
    text.resize(std::min(text.size(), text.find('\0')));
    if (text.empty()) text = "[EMPTY_" + std::to_string(i) + "]";
    if (!seen.insert(text).second)
      return corrupt("key " + key + " holds " + quote(text) + " twice");
  }
  for (const char* name : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    const GgufValue* value = file.find(name);
    if (value && (!value->is_array() || value->count != tokens->count))
      return corrupt("key " + std::string(name) + " does not have one element a token");
  }
  Result<std::optional<std::string>> model = file.string("tokenizer.ggml.model");
  if (!model) return model.error();
  if (!*model) return corrupt("key tokenizer.ggml.model is missing");
  if (**model != "llama" && **model != "gpt2")
    return Status(Code::unsupported, "key tokenizer.ggml.model is " + quote(**model) +
                                         "; weir runs models with llama and gpt2 vocabularies");
  if (**model == "llama") {
    for (unsigned byte = 0; byte < 256; ++byte) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", byte);
      if (!seen.contains(text))
        return corrupt("key " + key + " has no token for the byte " + std::string(text));
    }
  }
  return {};
}

}  // namespace

void VocabularyFree::operator()(llama_model* model) const { llama_model_free(model); }

Result<Vocabulary> load_vocabulary(const GgufFile& file, const std::string& path) {
  catch_library_log();
  if (Status status = check_tokens(file); !status.ok()) return status;
  take_library_log();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  Vocabulary vocabulary(llama_model_load_from_file(path.c_str(), params));
  const std::string reason = take_library_log();
  if (!vocabulary)
    return Status(Code::unsupported, "libllama cannot read the vocabulary: " +
                                         (reason.empty() ? "no reason" : reason));
  return vocabulary;
}

}  // namespace weir
