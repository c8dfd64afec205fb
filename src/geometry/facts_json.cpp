#include "geometry/facts_json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/quote.h"
#include "geometry/geometry_draft.h"

namespace weir {
namespace {

using Json = nlohmann::json;

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

bool take(const Json& field, std::string& value) {
  if (!field.is_string()) return false;
  value = field.get<std::string>();
  return true;
}
bool take(const Json& field, bool& value) {
  if (!field.is_boolean()) return false;
  value = field.get<bool>();
  return true;
}
bool take(const Json& field, double& value) {
  if (!field.is_number()) return false;
  value = field.get<double>();
  return true;
}
template <typename Integer>
bool take_integer(const Json& field, Integer& value) {
  if (!field.is_number_integer()) return false;
  if (field.is_number_unsigned() && field.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  const int64_t number = field.get<int64_t>();
  if (number < 0 || number > std::numeric_limits<Integer>::max()) return false;
  value = static_cast<Integer>(number);
  return true;
}
bool take(const Json& field, int& value) { return take_integer(field, value); }
bool take(const Json& field, int64_t& value) { return take_integer(field, value); }
bool take(const Json& field, std::vector<int>& values) {
  if (!field.is_array()) return false;
  values.resize(field.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (!take(field[i], values[i])) return false;
  }
  return true;
}
template <typename T>
bool take(const Json& field, std::optional<T>& value) {
  if (field.is_null()) return true;
  T inner{};
  if (!take(field, inner)) return false;
  value = inner;
  return true;
}

// Reads fields one by one and remembers the first that is missing or of another type. A field that
// nobody reads is an error, too: it may be a misspelt one.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename T>
  void read(const std::string& key, T& value) {
    known_.insert(key);
    if (!status_.ok()) return;
    const auto field = object_.find(key);
    if (field == object_.end()) {
      status_ = corrupt("geometry." + key + " is missing");
    } else if (!take(*field, value)) {
      status_ = corrupt("geometry." + key + " cannot be " +
                        printable(field->dump(-1, ' ', true, Json::error_handler_t::replace), 60));
    }
  }
  // A field that few models have.
  template <typename T>
  void read_if_present(const std::string& key, T& value) {
    if (object_.contains(key)) read(key, value);
  }
  std::optional<LayerKindFacts> kind(const std::string& name) {
    std::optional<int> n_head, n_head_kv, head_dim_k, head_dim_v;
    LayerKindFacts facts;
    read("n_head_" + name, n_head);
    read("n_head_kv_" + name, n_head_kv);
    read("head_dim_k_" + name, head_dim_k);
    read("head_dim_v_" + name, head_dim_v);
    read("rope_dims_" + name, facts.rope_dims);
    read("rope_theta_" + name, facts.rope_theta);
    if (!n_head) return std::nullopt;
    facts.n_head = *n_head;
    facts.n_head_kv = n_head_kv.value_or(0);
    facts.head_dim_k = head_dim_k.value_or(0);
    facts.head_dim_v = head_dim_v.value_or(0);
    return facts;
  }
  Status status() const {
    if (!status_.ok()) return status_;
    for (const auto& [key, value] : object_.items()) {
      if (!known_.contains(key))
        return corrupt("geometry has a field " + quote(key) + " that the format does not know");
    }
    return {};
  }

 private:
  const Json& object_;
  std::set<std::string> known_;
  Status status_;
};

void read_names(Fields& fields, ModelFacts& m) {
  const std::pair<const char*, std::string*> texts[] = {
      {"id", &m.id},
      {"name", &m.name},
      {"family", &m.family},
      {"gguf_arch", &m.gguf_arch},
      {"hf_arch", &m.hf_arch},
      {"source", &m.source},
      {"notes", &m.notes},
      {"attention_kind", &m.attention_kind},
      {"rope_type_gguf", &m.rope_type_gguf},
      {"rope_scaling", &m.rope_scaling},
      {"rope_scaling_scope", &m.rope_scaling_scope},
      {"embd_scale", &m.embd_scale},
      {"sinks", &m.sinks},
      {"q_norm", &m.q_norm},
      {"k_norm", &m.k_norm},
      {"v_norm", &m.v_norm},
      {"attn_gate", &m.attn_gate},
      {"norm_kind", &m.norm_kind},
      {"norm_placement", &m.norm_placement},
      {"act", &m.act},
      {"turn_open", &m.turn_open},
      {"turn_close", &m.turn_close},
  };
  for (const auto& [key, text] : texts) fields.read(key, *text);
}

void read_numbers(Fields& fields, ModelFacts& m) {
  const std::pair<const char*, double*> numbers[] = {{"attn_scale", &m.attn_scale},
                                                     {"attn_softcap", &m.attn_softcap},
                                                     {"final_softcap", &m.final_softcap},
                                                     {"logit_scale", &m.logit_scale}};
  for (const auto& [key, number] : numbers) fields.read(key, *number);
  const std::pair<const char*, int*> counts[] = {{"n_layers", &m.n_layers},
                                                 {"n_mtp_layers", &m.n_mtp_layers},
                                                 {"n_expert", &m.n_expert},
                                                 {"n_expert_used", &m.n_expert_used},
                                                 {"n_expert_shared", &m.n_expert_shared},
                                                 {"n_dense_lead", &m.n_dense_lead},
                                                 {"moe_every", &m.moe_every}};
  for (const auto& [key, count] : counts) fields.read(key, *count);
  fields.read("n_embd", m.n_embd);
  fields.read("n_ff", m.n_ff);
  fields.read_if_present("n_ff_reusing", m.n_ff_reusing);
  fields.read_if_present("n_embd_per_layer", m.n_embd_per_layer);
  fields.read("n_vocab", m.n_vocab);
  fields.read("n_ff_exp", m.n_ff_exp);
  fields.read("max_context", m.max_context);
}

Status check_layers(const ModelFacts& m) {
  const int n = m.n_layers;
  if (n < 1 || n > kMaxLayers) {
    return corrupt("geometry.n_layers is " + std::to_string(n) + "; it must be 1 to " +
                   std::to_string(kMaxLayers));
  }
  for (size_t i = 0; i < m.global_layers.size(); ++i) {
    const int layer = m.global_layers[i];
    if (layer >= n || (i > 0 && layer <= m.global_layers[i - 1])) {
      return corrupt("geometry.global_layers must ascend and stay below n_layers; " +
                     std::to_string(layer) + " does not");
    }
  }
  if (std::ssize(m.kv_source) != n) {
    return corrupt("geometry.kv_source names " + std::to_string(m.kv_source.size()) + " of " +
                   std::to_string(n) + " layers");
  }
  for (int i = 0; i < n; ++i) {
    const int source = m.kv_source[static_cast<size_t>(i)];
    if (source > i || m.kv_source[static_cast<size_t>(source)] != source ||
        m.is_global(source) != m.is_global(i)) {
      return corrupt("geometry.kv_source: layer " + std::to_string(i) +
                     " must read its own KV or that of an earlier layer of its kind that owns "
                     "some, not layer " +
                     std::to_string(source));
    }
  }
  return {};
}

// `n_layers` layers of this kind.
Status check_kind(const std::optional<LayerKindFacts>& kind, const std::string& name,
                  int64_t n_layers) {
  if (kind.has_value() != (n_layers > 0)) {
    return corrupt("geometry.n_head_" + name + " is " + (kind ? "given" : "null") + " with " +
                   std::to_string(n_layers) + " " + name + " layers");
  }
  if (!kind) return {};
  const int64_t row = int64_t{kind->head_dim_k} + kind->head_dim_v;
  if (kind->n_head < 1 || kind->n_head_kv < 1 || kind->n_head % kind->n_head_kv != 0) {
    return corrupt("geometry.n_head_" + name + " (" + std::to_string(kind->n_head) +
                   ") must be a multiple of n_head_kv_" + name + " (" +
                   std::to_string(kind->n_head_kv) + ")");
  }
  if (kind->head_dim_k < 1 || kind->head_dim_v < 1 ||
      kind->n_head_kv > kMaxElementsPerToken / row / n_layers) {
    return corrupt("geometry.head_dim_k_" + name + " or head_dim_v_" + name +
                   " is zero, or the layers' rows are too large");
  }
  return {};
}

Status check(const ModelFacts& m) {
  if (m.id.empty() ||
      m.id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-") != std::string::npos) {
    return corrupt("geometry.id must be of a-z, 0-9, '.' and '-', not " + quote(m.id));
  }
  if (m.source.empty()) return corrupt("geometry.source is empty: say where the facts are from");
  if (Status s = check_layers(m); !s.ok()) return s;
  const auto n_global = std::ssize(m.global_layers);
  const int64_t n_local = m.n_layers - n_global;
  if (Status s = check_kind(m.global, "global", n_global); !s.ok()) return s;
  if (Status s = check_kind(m.local, "local", n_local); !s.ok()) return s;
  const bool is_known =
      m.attention_kind == "standard" || m.attention_kind == "chunked" || m.attention_kind == "full";
  if (!is_known || (m.attention_kind == "full") != (n_local == 0)) {
    return corrupt("geometry.attention_kind is " + quote(m.attention_kind) + " with " +
                   std::to_string(n_local) +
                   " local layers; it must be standard or chunked, or full without them");
  }
  if (m.window.has_value() != (n_local > 0) ||
      (m.window && (*m.window < 1 || *m.window > kMaxTokens))) {
    return corrupt("geometry.window must be 1 to " + std::to_string(kMaxTokens) +
                   " where there are local layers, else null");
  }
  if (m.max_context < 1 || m.max_context > kMaxTokens) {
    return corrupt("geometry.max_context must be 1 to " + std::to_string(kMaxTokens));
  }
  return {};
}

}  // namespace

Result<ModelFacts> facts_from_json(const Json& geometry) {
  if (!geometry.is_object()) return corrupt("geometry is no JSON object");
  ModelFacts m;
  Fields fields(geometry);
  read_names(fields, m);
  read_numbers(fields, m);
  fields.read("verified", m.verified);
  fields.read("global_layers", m.global_layers);
  fields.read("window", m.window);
  fields.read("kv_source", m.kv_source);
  m.global = fields.kind("global");
  m.local = fields.kind("local");
  fields.read("v_from_k_global", m.v_from_k_global);
  fields.read("norm_plus_one_in_hf", m.norm_plus_one_in_hf);
  fields.read("tied_embeddings", m.tied_embeddings);
  if (Status s = fields.status(); !s.ok()) return s;
  if (Status s = check(m); !s.ok()) return s;
  return m;
}

}  // namespace weir
