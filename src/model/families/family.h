// families/: one file a model family. Each reads like the paper's diagram: the keys and tensors it
// needs, the graph of a step, and how to write a synthetic model of its kind.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/rope.h"

struct ggml_tensor;

namespace weir {

class GraphBuilder;
class SynthFile;
class WeightLoader;
struct ModelFacts;

// A loaded model of one family: its hyperparameters, its tensors and the graph of a step.
class FamilyModel {
 public:
  virtual ~FamilyModel() = default;
  // Adds the forward pass of one step; returns the logits [n_vocab, outputs], or without outputs
  // the tensor whose computation has stored all of the step's K and V.
  virtual ggml_tensor* build(GraphBuilder& g) const = 0;
  // How layer `layer` rotates its keys.
  virtual RopeLayer rope_of(int layer) const = 0;
  virtual int64_t n_vocab() const = 0;
  virtual int64_t n_embd() const = 0;
};

struct Family {
  const char* arch;  // general.architecture
  // Reads keys and asks for tensors. Errors: those of WeightLoader.
  Result<std::unique_ptr<FamilyModel>> (*open)(WeightLoader& loader);
  // Lists keys and tensors of a synthetic model.
  void (*synthesize)(const ModelFacts& facts, SynthFile& file);
};

// Null if weir does not know the architecture.
const Family* find_family(std::string_view arch);
// "gemma3, ...": the architectures weir runs.
std::string family_names();

// One per file of this folder.
extern const Family kCohere2;
extern const Family kExaone4, kOlmo2;
extern const Family kGemma2, kGemma3, kGemma3n, kGemma4;
extern const Family kLlama, kMistral3, kPhi3, kQwen3;
extern const Family kGptOss, kLlama4, kMimo2, kStep35, kSmallThinker, kAfmoe, kLaguna;

}  // namespace weir
