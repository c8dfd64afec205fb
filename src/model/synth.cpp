#include "model/synth.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "model/families/family.h"
#include "model/random_tiles.h"
#include "model/synth_file.h"
#include "model/synth_vocab.h"

namespace weir {
namespace {

std::string synth_types() {
  std::string names;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (is_synth_type(type)) names += std::string(names.empty() ? "" : ", ") + ggml_type_name(type);
  }
  return names;
}

Result<ggml_type> parse_weights(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (!is_synth_type(type)) continue;
    std::string known = ggml_type_name(type);
    std::transform(known.begin(), known.end(), known.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (known == name) return type;
  }
  return Status(Code::invalid_input, "weight type \"" + name + "\" is none of " + synth_types());
}

// libllama takes a name with "phi-3" or "phi3" for the promise of Phi-3's own tokens.
std::string plain_name(std::string name) {
  for (const char* own : {"phi-3", "phi3"}) {
    const auto same_letter = [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == b;
    };
    const std::string_view text(own);
    const auto at = std::search(name.begin(), name.end(), text.begin(), text.end(), same_letter);
    if (at != name.end()) name.replace(at, at + std::ssize(text), "Phi 3");
  }
  return name;
}

}  // namespace

Result<SynthSummary> synthesize(const ModelFacts& facts, const SynthOptions& options,
                                const std::string& path) {
  const Family* family = find_family(facts.gguf_arch);
  if (!family || !family->synthesize)
    return Status(Code::unsupported, "cannot write a synthetic " + facts.name + ": architecture " +
                                         facts.gguf_arch + " is none of " + family_names());
  Result<ggml_type> type = parse_weights(options.weights);
  if (!type) return type.error();
  if (!facts.n_ff || !facts.n_vocab || (!facts.global && !facts.local))
    return Status(Code::unsupported,
                  "cannot write a synthetic " + facts.name + ": its widths are not known");

  ModelFacts model = facts;
  if (options.n_layers < 0 || options.n_layers > facts.n_layers)
    return Status(Code::invalid_input, facts.name + " has " + std::to_string(facts.n_layers) +
                                           " layers; ask for 1 to that many");
  if (options.n_layers > 0 && options.n_layers < facts.n_layers) {
    model.n_layers = options.n_layers;
    model.n_mtp_layers = 0;  // draft layers go with the whole model only
  }
  if (options.n_vocab != 0) model.n_vocab = options.n_vocab;
  const int64_t n_vocab = *model.n_vocab;
  if (n_vocab < kMinSynthVocab || n_vocab > kMaxSynthVocab)
    return Status(Code::invalid_input, "a vocabulary has " + std::to_string(kMinSynthVocab) +
                                           " to " + std::to_string(kMaxSynthVocab) +
                                           " tokens, not " + std::to_string(n_vocab));

  SynthFile file(*type, options.seed);
  file.key("general.architecture", model.gguf_arch);
  file.key("general.name", plain_name(model.name) + " (random weights)");
  file.key("general.quantization_version", uint32_t{GGML_QNT_VERSION});
  family->synthesize(model, file);
  file.vocabulary(n_vocab);
  if (Status status = file.write(path, options.progress); !status.ok()) return status;
  return SynthSummary{{file.data_bytes()}, file.notes()};
}

}  // namespace weir
