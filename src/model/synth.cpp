#include "model/synth.h"

#include <algorithm>

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

}  // namespace

Result<SynthSummary> synthesize(const SynthShape& model, const SynthOptions& options,
                                const std::string& path) {
  const Family* family = find_family(model.arch);
  if (!family || !family->synthesize)
    return Status(Code::unsupported, "cannot write a synthetic " + model.name + ": architecture " +
                                         model.arch + " is none of " + family_names());
  Result<ggml_type> type = parse_weights(options.weights);
  if (!type) return type.error();

  SynthShape shape = model;
  if (options.n_layers < 0 || options.n_layers > model.n_layers)
    return Status(Code::invalid_input, model.name + " has " + std::to_string(model.n_layers) +
                                           " layers; ask for 1 to that many");
  if (options.n_layers > 0) shape.n_layers = options.n_layers;
  if (options.n_vocab != 0) shape.n_vocab = options.n_vocab;
  if (shape.n_vocab < kMinSynthVocab || shape.n_vocab > 16 * 1024 * 1024)
    return Status(Code::invalid_input, "a vocabulary has " + std::to_string(kMinSynthVocab) +
                                           " to 16777216 tokens, not " +
                                           std::to_string(shape.n_vocab));

  SynthFile file(*type, options.seed);
  file.key("general.architecture", shape.arch);
  file.key("general.name", shape.name + " (random weights)");
  file.key("general.quantization_version", uint32_t{GGML_QNT_VERSION});
  family->synthesize(shape, file);
  file.vocabulary(shape.n_vocab);
  if (Status status = file.write(path, options.progress); !status.ok()) return status;
  return SynthSummary{{file.data_bytes()}, file.notes()};
}

}  // namespace weir
