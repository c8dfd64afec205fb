#pragma once

#include <memory>
#include <optional>
#include <string>

#include "geometry/gguf_reader.h"
#include "model/families/family.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/vocabulary.h"
#include "model/weight_loader.h"

namespace weir {

struct Model::Impl {
  std::string path, description;
  std::optional<GgufFile> file;  // only while weights lie in its mapping
  KvGeometry geometry;
  Vocabulary vocabulary;
  Weights weights;
  std::unique_ptr<FamilyModel> family;
  std::unique_ptr<RopeRotator> rotator;
  int64_t n_params = 0;
  bool exact = false;
};

}  // namespace weir
