#include "model/families/family.h"

namespace weir {
namespace {

const Family* const kFamilies[] = {
    &kAfmoe,    &kCohere2, &kExaone4, &kGemma2, &kGemma3,       &kGemma3n,
    &kGemma4,   &kGptOss,  &kLaguna,  &kLlama,  &kLlama4,       &kMimo2,
    &kMistral3, &kOlmo2,   &kPhi3,    &kQwen3,  &kSmallThinker, &kStep35,
};

}  // namespace

const Family* find_family(std::string_view arch) {
  for (const Family* family : kFamilies)
    if (arch == family->arch) return family;
  return nullptr;
}

std::string family_names() {
  std::string names;
  for (const Family* family : kFamilies)
    names += std::string(names.empty() ? "" : ", ") + family->arch;
  return names;
}

}  // namespace weir
