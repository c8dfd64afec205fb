#include <cmath>

#include "base/check.h"
#include "geometry/facts_json.h"
#include "plan/catalog.h"

namespace weir {
namespace {

using Json = nlohmann::json;

// bf16 costs what f16 does.
constexpr KvType kCodecs[] = {KvType::f16, KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0};

std::vector<int64_t> contexts_of(const ModelFacts& facts) {
  std::vector<int64_t> contexts;
  for (const int64_t n : {int64_t{8192}, int64_t{32768}, int64_t{131072}}) {
    if (n < facts.max_context) contexts.push_back(n);
  }
  contexts.push_back(facts.max_context);
  return contexts;
}

// Whole numbers as such, others to `decimals`, ties to even.
OrderedJson rounded(double value, int decimals) {
  if (value == std::floor(value)) return static_cast<int64_t>(value);
  const double power = std::pow(10.0, decimals);
  return std::nearbyint(value * power) / power;
}

OrderedJson codec_figures(const Json& geometry, const ModelFacts& facts, KvType type) {
  const auto figure = [&](CatalogFigure f, int64_t n = 0, int decimals = 2) -> OrderedJson {
    const Result<double> value = catalog_figure(geometry, {.figure = f, .type = type}, n);
    WEIR_CHECK(value.ok());
    return rounded(*value, decimals);
  };
  OrderedJson json;
  for (const CatalogFigure f :
       {CatalogFigure::global_bytes_per_token, CatalogFigure::local_bytes_per_token,
        CatalogFigure::local_bytes, CatalogFigure::uniform_bytes_per_token}) {
    json[figure_name(f)] = figure(f);
  }
  json["contexts"] = OrderedJson::array();
  for (const int64_t n : contexts_of(facts)) {
    OrderedJson row;
    row["tokens"] = n;
    for (const CatalogFigure f : {CatalogFigure::total_bytes,
                                  CatalogFigure::effective_bytes_per_token, CatalogFigure::ratio}) {
      row[figure_name(f)] = figure(f, n, f == CatalogFigure::ratio ? 6 : 2);
    }
    json["contexts"].push_back(row);
  }
  return json;
}

OrderedJson stored_once(const ModelFacts& facts) {
  OrderedJson json;
  if (const auto n = stored_once_elements(facts, CatalogAssumption::StoredOnce::rotated_k_and_v)) {
    json["rotated_k_and_v_elements_per_token"] = *n;
  }
  if (const auto n = stored_once_elements(facts, CatalogAssumption::StoredOnce::v)) {
    json["v_elements_per_token"] = *n;
  }
  return json;
}

}  // namespace

OrderedJson derived_figures(const Json& geometry) {
  const Result<ModelFacts> facts = facts_from_json(geometry);
  WEIR_CHECK(facts.ok());
  const auto count = [&](CatalogFigure f) {
    return static_cast<int64_t>(*catalog_figure(geometry, {.figure = f}, 0));
  };
  int64_t n_owners = 0;
  for (int i = 0; i < facts->n_layers; ++i)
    n_owners += facts->kv_source[static_cast<size_t>(i)] == i;
  OrderedJson json;
  json["layers"] = {{"global", count(CatalogFigure::global_layers)},
                    {"local", count(CatalogFigure::local_layers)},
                    {"owning_kv", n_owners}};
  // f16 has two bytes an element.
  json["elements_per_token"] = {{"global", count(CatalogFigure::global_bytes_per_token) / 2},
                                {"local", count(CatalogFigure::local_bytes_per_token) / 2}};
  const int64_t crossover = count(CatalogFigure::crossover_tokens);
  json["crossover_tokens"] = crossover > 0 ? OrderedJson(crossover) : OrderedJson(nullptr);
  if (facts->v_from_k_global) json["global_stored_once"] = stored_once(*facts);
  for (const KvType type : kCodecs) {
    json["codecs"][kv_type_name(type)] = codec_figures(geometry, *facts, type);
  }
  return json;
}

}  // namespace weir
