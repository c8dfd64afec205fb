#include "model/model.h"

#include <cstdio>
#include <map>
#include <utility>

#include "base/quote.h"
#include "geometry/gguf_geometry.h"
#include "llama.h"
#include "model/model_impl.h"

namespace weir {
namespace {

// "gemma3 1B q8_0": architecture, size, and the type most parameters have.
std::string describe(const GgufFile& file, const std::string& arch, int64_t n_params) {
  std::map<std::string, int64_t> by_type;
  for (const GgufTensor& tensor : file.tensors())
    by_type[tensor.type_facts->name] += tensor.elements();
  std::string type;
  int64_t most = 0;
  for (const auto& [name, elements] : by_type)
    if (elements > most) type = name, most = elements;
  char size[32];
  if (n_params >= 999'500'000)
    std::snprintf(size, sizeof size, "%.3gB", static_cast<double>(n_params) / 1e9);
  else
    std::snprintf(size, sizeof size, "%.3gM", static_cast<double>(n_params) / 1e6);
  return arch + " " + size + " " + type;
}

Status in_file(const std::string& path, const Status& status) {
  return Status(status.code(), path + ": " + status.message());
}

}  // namespace

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const std::string& path, const ModelOptions& options) {
  Result<GgufFile> opened = GgufFile::open(path);  // its errors name the file
  if (!opened) return opened.error();
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const GgufFile& file = impl->file.emplace(std::move(*opened));

  Result<std::optional<std::string>> arch = file.string("general.architecture");
  if (!arch) return in_file(path, arch.error());
  if (!*arch) return in_file(path, Status(Code::corrupt, "key general.architecture is missing"));
  const Family* family = find_family(**arch);
  if (!family)
    return in_file(path,
                   Status(Code::unsupported, "architecture " + quote(**arch) +
                                                 " is not supported; weir runs " + family_names()));
  Result<KvGeometry> geometry = geometry_from_gguf(file);
  if (!geometry) return in_file(path, geometry.error());
  impl->geometry = std::move(*geometry);

  ModelOptions placed = options;
  if (options.exact) placed.repack = false;
  impl->exact = options.exact;
  WeightLoader loader(file, impl->geometry, placed);
  Result<std::unique_ptr<FamilyModel>> model = family->open(loader);
  if (!model) return in_file(path, model.error());
  impl->family = std::move(*model);

  Result<Vocabulary> vocabulary = load_vocabulary(file, path);
  if (!vocabulary) return in_file(path, vocabulary.error());
  impl->vocabulary = std::move(*vocabulary);
  const int64_t n_tokens = llama_vocab_n_tokens(llama_model_get_vocab(impl->vocabulary.get()));
  if (n_tokens != impl->family->n_vocab())
    return in_file(
        path, Status(Code::corrupt, "key tokenizer.ggml.tokens has " + std::to_string(n_tokens) +
                                        " tokens, tensor token_embd.weight has " +
                                        std::to_string(impl->family->n_vocab()) + " rows"));

  Result<Weights> weights = loader.load();
  if (!weights) return in_file(path, weights.error());
  impl->weights = std::move(*weights);
  impl->rotator = std::make_unique<RopeRotator>(
      [family_model = impl->family.get()](int layer) { return family_model->rope_of(layer); });
  for (const GgufTensor& tensor : file.tensors()) impl->n_params += tensor.elements();
  impl->description = describe(file, **arch, impl->n_params);
  if (!impl->weights.uses_mapping()) impl->file.reset();
  return std::unique_ptr<Model>(new Model(std::move(impl)));
}

const std::string& Model::path() const { return impl_->path; }
const KvGeometry& Model::geometry() const { return impl_->geometry; }
const std::string& Model::description() const { return impl_->description; }
int64_t Model::n_vocab() const { return impl_->family->n_vocab(); }
int64_t Model::n_embd() const { return impl_->family->n_embd(); }
int64_t Model::n_params() const { return impl_->n_params; }
bool Model::is_exact() const { return impl_->exact; }
Bytes Model::weight_bytes() const { return impl_->weights.bytes(); }
const llama_vocab* Model::vocab() const { return llama_model_get_vocab(impl_->vocabulary.get()); }
const llama_model* Model::vocab_model() const { return impl_->vocabulary.get(); }
const KeyRotator& Model::key_rotator() const { return *impl_->rotator; }

}  // namespace weir
