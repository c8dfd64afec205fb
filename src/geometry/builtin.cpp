#include "geometry/builtin.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "base/quote.h"
#include "catalog_json.h"
#include "geometry/facts_json.h"

namespace weir {
namespace {

// The catalog is part of the program: an entry that does not read is our bug.
std::vector<ModelFacts> read_all() {
  std::vector<ModelFacts> models;
  const nlohmann::json entries = nlohmann::json::parse(builtin_catalog(), nullptr, false);
  WEIR_CHECK(entries.is_array());
  for (const nlohmann::json& entry : entries) {
    WEIR_CHECK(entry.is_object() && entry.contains("geometry"));
    Result<ModelFacts> facts = facts_from_json(entry["geometry"]);
    WEIR_CHECK(facts.ok());
    models.push_back(std::move(*facts));
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

std::string_view builtin_catalog() { return kCatalogJson; }

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
                                    "OLMo and more; 'weir catalog list' names all"
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
    if (layer.storage == KvStorage::shared) layer.k_rotating = kind.rope_dims.value_or(0);
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
