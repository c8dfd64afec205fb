#include "model/synth_config.h"

#include <algorithm>

#include "geometry/hf_config.h"
#include "geometry/hf_json.h"

namespace weir {
namespace {

double number_or(const nlohmann::json& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

LayerKindFacts kind_of(const KvLayer& layer, double theta) {
  LayerKindFacts kind;
  kind.n_head = layer.n_heads;
  kind.n_head_kv = layer.n_kv_heads;
  kind.head_dim_k = layer.k_dim;
  kind.head_dim_v = layer.v_dim;
  kind.rope_theta = theta;
  return kind;
}

}  // namespace

Result<ModelFacts> facts_from_hf_config(std::string_view text) {
  Result<KvGeometry> geometry = geometry_from_hf_config(text);
  if (!geometry) return geometry.error();
  Result<nlohmann::json> parsed = parse_untrusted_json(text);
  if (!parsed) return parsed.error();
  // A multimodal model keeps its text model's keys apart.
  const auto nested = parsed->find("text_config");
  const nlohmann::json& config = nested != parsed->end() && nested->is_object() ? *nested : *parsed;

  ModelFacts facts;
  facts.id = facts.name = geometry->name.empty() ? geometry->arch : geometry->name;
  facts.family = facts.gguf_arch = geometry->arch;
  facts.n_layers = static_cast<int>(geometry->layers.size());
  facts.max_context = geometry->max_context;
  Status status;
  const JsonFields fields(config, status);
  const auto width = [&](const char* key) {
    const std::optional<int64_t> value = fields.integer(key);
    if (status.ok() && (!value || *value <= 0))
      status = Status(Code::corrupt, "key " + std::string(key) + " is missing or not positive");
    return value.value_or(0);
  };
  facts.n_embd = width("hidden_size");
  facts.n_ff = width("intermediate_size");
  facts.n_vocab = width("vocab_size");
  if (!status.ok()) return status;
  const auto scaling = config.find("rope_scaling");
  if (scaling != config.end() && scaling->is_object())
    facts.rope_scaling = "linear factor=" + std::to_string(number_or(*scaling, "factor", 1.0));
  facts.tied_embeddings = fields.boolean("tie_word_embeddings").value_or(true);
  for (const KvLayer& layer : geometry->layers) {
    if (layer.retention.kind == LayerKind::global) {
      facts.global = kind_of(layer, number_or(config, "rope_theta", 1e6));
      facts.global_layers.push_back(layer.index);
    } else {
      facts.local = kind_of(layer, number_or(config, "rope_local_base_freq", 1e4));
      facts.window = layer.retention.window;
    }
  }
  return facts;
}

}  // namespace weir
