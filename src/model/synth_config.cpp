#include "model/synth_config.h"

#include <algorithm>
#include <array>

#include "geometry/hf_config.h"
#include "geometry/hf_json.h"

namespace weir {
namespace {

using Json = nlohmann::json;

double number_or(const Json& object, const char* key, double otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

std::string text_or(const Json& object, const char* key, const std::string& otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

// What config.json's of an architecture leave to the library, and what they never say.
struct ConfigFamily {
  std::string_view arch;
  bool ties_embeddings = false;
  bool has_unrotated_globals = false;     // global layers know no positions, where others do
  double theta = 10000, local_theta = 0;  // 0: as global layers
  double attn_softcap = 0, final_softcap = 0, logit_scale = 1;
};

constexpr std::array kConfigFamilies = {
    ConfigFamily{
        .arch = "gemma2", .ties_embeddings = true, .attn_softcap = 50, .final_softcap = 30},
    ConfigFamily{.arch = "gemma3", .ties_embeddings = true, .theta = 1e6, .local_theta = 10000},
    ConfigFamily{.arch = "gemma3n",
                 .ties_embeddings = true,
                 .theta = 1e6,
                 .local_theta = 10000,
                 .final_softcap = 30},
    ConfigFamily{.arch = "gemma4", .ties_embeddings = true, .theta = 1e6, .local_theta = 10000},
    ConfigFamily{.arch = "cohere2",
                 .ties_embeddings = true,
                 .has_unrotated_globals = true,
                 .logit_scale = 0.0625},
    ConfigFamily{.arch = "exaone4", .has_unrotated_globals = true},
    ConfigFamily{.arch = "llama4", .has_unrotated_globals = true},
    ConfigFamily{.arch = "smallthinker", .has_unrotated_globals = true},
    ConfigFamily{.arch = "afmoe", .has_unrotated_globals = true},
};

ConfigFamily config_family(std::string_view arch) {
  for (const ConfigFamily& family : kConfigFamilies)
    if (family.arch == arch) return family;
  return {};
}

// The rope of a kind of layer: newer files keep it in rope_parameters, some with an object for each
// kind ("full_attention", "sliding_attention").
const Json& rope_of(const Json& config, const char* kind) {
  static const Json none = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto rope = config.find(key);
    if (rope == config.end() || !rope->is_object()) continue;
    const auto own = rope->find(kind);
    return own != rope->end() && own->is_object() ? *own : *rope;
  }
  return none;
}

// As the catalog writes it: "yarn factor=8 orig=8192 beta_fast=32 beta_slow=1".
std::string scaling_text(const Json& config, int64_t max_context) {
  const Json& rope = rope_of(config, "full_attention");
  std::string type = text_or(rope, "rope_type", text_or(rope, "type", "default"));
  if (type == "default") return "none";
  if (type == "su") type = "longrope";  // its first name
  const double context = static_cast<double>(max_context);
  const double original =
      std::clamp(number_or(rope, "original_max_position_embeddings",
                           number_or(config, "original_max_position_embeddings", context)),
                 0.0, 1e12);
  const double factor =
      number_or(rope, "factor", original > 0 ? std::max(1.0, context / original) : 1.0);
  std::string text = type + " factor=" + std::to_string(factor);
  if (type == "linear") return text;
  text += " orig=" + std::to_string(static_cast<int64_t>(original));
  for (const auto& [key, name] :
       {std::pair{"beta_fast", "beta_fast"}, std::pair{"beta_slow", "beta_slow"},
        std::pair{"low_freq_factor", "low"}, std::pair{"high_freq_factor", "high"}})
    if (rope.contains(key))
      text += std::string(" ") + name + "=" + std::to_string(number_or(rope, key, 1));
  return text;
}

LayerKindFacts kind_of(const KvLayer& layer, const Json& config, const ConfigFamily& family,
                       bool has_locals) {
  const bool is_global = layer.retention.kind == LayerKind::global;
  const Json& global_rope = rope_of(config, "full_attention");
  const Json& rope = is_global ? global_rope : rope_of(config, "sliding_attention");
  LayerKindFacts kind;
  kind.n_head = layer.n_heads;
  kind.n_head_kv = layer.n_kv_heads;
  kind.head_dim_k = layer.k_dim;
  kind.head_dim_v = layer.v_dim;
  if (is_global && has_locals && family.has_unrotated_globals) {
    kind.rope_dims = 0;
    return kind;
  }
  const double part =
      number_or(rope, "partial_rotary_factor", number_or(config, "partial_rotary_factor", 1));
  kind.rope_dims = static_cast<int>(std::clamp(part, 0.0, 1.0) * layer.k_dim);
  double theta =
      number_or(global_rope, "rope_theta", number_or(config, "rope_theta", family.theta));
  if (!is_global) {
    const double local = family.local_theta > 0 ? family.local_theta : theta;
    theta = number_or(config, "rope_local_base_freq", number_or(config, "swa_rope_theta", local));
    if (&rope != &global_rope) theta = number_or(rope, "rope_theta", theta);
  }
  kind.rope_theta = theta;
  return kind;
}

// The text model inside a multimodal config, or the config itself.
const Json& text_config(const Json& config) {
  const auto nested = config.find("text_config");
  return nested != config.end() && nested->is_object() ? *nested : config;
}

}  // namespace

Result<ModelFacts> facts_from_hf_config(std::string_view text) {
  Result<KvGeometry> geometry = geometry_from_hf_config(text);
  if (!geometry) return geometry.error();
  Result<Json> parsed = parse_untrusted_json(text);
  if (!parsed) return parsed.error();
  const Json& config = text_config(*parsed);

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
  const ConfigFamily family = config_family(facts.gguf_arch);
  facts.tied_embeddings = fields.boolean("tie_word_embeddings").value_or(family.ties_embeddings);
  if (!status.ok()) return status;
  facts.rope_scaling = scaling_text(config, facts.max_context);
  facts.attn_softcap = number_or(config, "attn_logit_softcapping", family.attn_softcap);
  facts.final_softcap = number_or(config, "final_logit_softcapping", family.final_softcap);
  facts.logit_scale = number_or(config, "logit_scale", family.logit_scale);

  const auto is_local = [](const KvLayer& l) { return l.retention.kind != LayerKind::global; };
  const bool has_locals = std::any_of(geometry->layers.begin(), geometry->layers.end(), is_local);
  facts.attention_kind = has_locals ? "standard" : "full";
  for (const KvLayer& layer : geometry->layers) {
    facts.kv_source.push_back(layer.source);
    if (is_local(layer)) {
      facts.local = kind_of(layer, config, family, has_locals);
      facts.window = layer.retention.window;
      if (layer.retention.kind == LayerKind::chunked) facts.attention_kind = "chunked";
    } else {
      facts.global = kind_of(layer, config, family, has_locals);
      facts.global_layers.push_back(layer.index);
    }
  }
  return facts;
}

}  // namespace weir
