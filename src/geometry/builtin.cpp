#include "geometry/builtin.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/quote.h"
#include "geometry_json.h"

namespace weir {
namespace {

using Json = nlohmann::json;

template <typename T>
void read(const Json& entry, const std::string& key, T& value) {
  entry.at(key).get_to(value);
}

template <typename T>
void read(const Json& entry, const std::string& key, std::optional<T>& value) {
  if (const Json& field = entry.at(key); !field.is_null()) value = field.get<T>();
}

std::optional<LayerKindFacts> read_kind(const Json& entry, const std::string& kind) {
  if (entry.at("n_head_" + kind).is_null()) return std::nullopt;
  LayerKindFacts facts;
  read(entry, "n_head_" + kind, facts.n_head);
  read(entry, "n_head_kv_" + kind, facts.n_head_kv);
  read(entry, "head_dim_k_" + kind, facts.head_dim_k);
  read(entry, "head_dim_v_" + kind, facts.head_dim_v);
  read(entry, "rope_dims_" + kind, facts.rope_dims);
  read(entry, "rope_theta_" + kind, facts.rope_theta);
  return facts;
}

ModelFacts read_entry(const Json& entry) {
  ModelFacts m;
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
  for (const auto& [key, text] : texts) read(entry, key, *text);
  const std::pair<const char*, double*> numbers[] = {{"attn_scale", &m.attn_scale},
                                                     {"attn_softcap", &m.attn_softcap},
                                                     {"final_softcap", &m.final_softcap},
                                                     {"logit_scale", &m.logit_scale}};
  for (const auto& [key, number] : numbers) read(entry, key, *number);
  const std::pair<const char*, int*> counts[] = {{"n_layers", &m.n_layers},
                                                 {"n_mtp_layers", &m.n_mtp_layers},
                                                 {"n_expert", &m.n_expert},
                                                 {"n_expert_used", &m.n_expert_used},
                                                 {"n_expert_shared", &m.n_expert_shared},
                                                 {"n_dense_lead", &m.n_dense_lead},
                                                 {"moe_every", &m.moe_every}};
  for (const auto& [key, count] : counts) read(entry, key, *count);

  read(entry, "verified", m.verified);
  read(entry, "global_layers", m.global_layers);
  read(entry, "window", m.window);
  read(entry, "kv_source", m.kv_source);
  m.global = read_kind(entry, "global");
  m.local = read_kind(entry, "local");
  read(entry, "v_from_k_global", m.v_from_k_global);
  read(entry, "n_embd", m.n_embd);
  read(entry, "n_ff", m.n_ff);
  read(entry, "n_vocab", m.n_vocab);
  read(entry, "norm_plus_one_in_hf", m.norm_plus_one_in_hf);
  read(entry, "n_ff_exp", m.n_ff_exp);
  read(entry, "tied_embeddings", m.tied_embeddings);
  read(entry, "max_context", m.max_context);
  return m;
}

// The list is part of the program: an entry that does not parse is our bug.
std::vector<ModelFacts> read_all() {
  std::vector<ModelFacts> models;
  try {
    for (const Json& entry : Json::parse(kGeometryJson)) models.push_back(read_entry(entry));
  } catch (const Json::exception&) {
    WEIR_CHECK(false && "catalog/geometry.json lacks a field or holds one of another type");
  }
  return models;
}

// Letters and digits only, lower case, so that "Gemma 3 27B" is near "gemma-3-27b".
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) {
    if (c >= 'A' && c <= 'Z') out += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) out += c;
  }
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string near_matches(std::string_view id) {
  const std::string wanted = plain(id);
  std::vector<std::pair<size_t, std::string>> scored;
  for (const ModelFacts& m : builtin_models()) {
    const std::string known = plain(m.id);
    size_t distance = edit_distance(wanted, known);
    const bool inside = !wanted.empty() && (known.find(wanted) != std::string::npos ||
                                            wanted.find(known) != std::string::npos);
    if (inside) distance = 0;
    if (distance <= std::max<size_t>(2, known.size() / 3)) scored.emplace_back(distance, m.id);
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(scored.size(), 5); ++i) {
    text += (i == 0 ? "" : ", ") + scored[i].second;
  }
  return text;
}

}  // namespace

bool ModelFacts::is_global(int layer) const {
  return std::binary_search(global_layers.begin(), global_layers.end(), layer);
}

const std::vector<ModelFacts>& builtin_models() {
  static const std::vector<ModelFacts> models = read_all();
  return models;
}

Result<const ModelFacts*> find_builtin(std::string_view id) {
  for (const ModelFacts& m : builtin_models()) {
    if (m.id == id) return &m;
  }
  const std::string near = near_matches(id);
  return Status(Code::not_found,
                "there is no built-in model " + quote(id) +
                    (near.empty() ? "; known families: Gemma, gpt-oss, Command, Llama, Mistral, "
                                    "OLMo and more, see catalog/geometry.json"
                                  : "; near matches: " + near));
}

KvGeometry geometry_of(const ModelFacts& facts) {
  KvGeometry geometry;
  geometry.name = facts.name;
  geometry.arch = facts.gguf_arch;
  geometry.max_context = facts.max_context;
  geometry.pattern = PatternSource::builtin;
  for (int i = 0; i < facts.n_layers; ++i) {
    const bool is_global = facts.is_global(i);
    const LayerKindFacts& kind = is_global ? *facts.global : *facts.local;
    KvLayer layer;
    layer.index = i;
    if (!is_global) {
      layer.retention = {
          facts.attention_kind == "chunked" ? LayerKind::chunked : LayerKind::sliding,
          *facts.window};
    }
    layer.n_heads = kind.n_head;
    layer.n_kv_heads = kind.n_head_kv;
    layer.k_dim = kind.head_dim_k;
    layer.v_dim = kind.head_dim_v;
    layer.storage = is_global && facts.v_from_k_global ? KvStorage::shared : KvStorage::separate;
    layer.source = facts.kv_source[static_cast<size_t>(i)];
    geometry.layers.push_back(layer);
  }
  if (!facts.verified) {
    geometry.notes.push_back(
        "unverified: this entry was not read in the vendor's own files (source: " + facts.source +
        ")");
  }
  return geometry;
}

Result<KvGeometry> builtin_geometry(std::string_view id) {
  const Result<const ModelFacts*> facts = find_builtin(id);
  if (!facts) return facts.error();
  return geometry_of(**facts);
}

}  // namespace weir
