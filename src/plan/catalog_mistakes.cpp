// What people usually get wrong, to put a name to a figure that does not fit.
#include "geometry/facts_json.h"
#include "geometry/geometry_draft.h"
#include "plan/catalog.h"

namespace weir {
namespace {

using Json = nlohmann::json;

struct Mistake {
  std::string text;
  CatalogAssumption assumption;
};

// The heads and sizes of one kind for the layers of the other.
Json shape_of(const Json& geometry, const std::string& from, const std::string& to) {
  Json patch;
  for (const char* field : {"n_head_", "n_head_kv_", "head_dim_k_", "head_dim_v_"}) {
    patch[field + to] = geometry.at(field + from);
  }
  return patch;
}

std::vector<Mistake> mistakes_about(const Json& geometry, const ModelFacts& facts) {
  std::vector<Mistake> list;
  if (facts.global && facts.local) {
    list.push_back({"the local layers' heads and sizes used for the global ones",
                    {.geometry = shape_of(geometry, "local", "global"), .local_rows = {}}});
    list.push_back({"the global layers' heads and sizes used for the local ones",
                    {.geometry = shape_of(geometry, "global", "local"), .local_rows = {}}});
  }
  const int last = facts.n_layers - 1;
  if (facts.global && !facts.is_global(last)) {
    Json layers = facts.global_layers;
    layers.push_back(last);
    list.push_back({"the last layer taken for a global one",
                    {.geometry = {{"global_layers", layers}}, .local_rows = {}}});
  }
  Json own = Json::array();
  for (int i = 0; i < facts.n_layers; ++i) own.push_back(i);
  if (own != geometry.at("kv_source")) {
    list.push_back({"layers that read another layer's KV counted as if they had their own",
                    {.geometry = {{"kv_source", own}}, .local_rows = {}}});
  }
  if (facts.window) {
    const auto rows = [&](std::string text, int64_t n) {
      list.push_back({std::move(text), {.geometry = {}, .local_rows = n}});
    };
    rows("local layers that keep every token", kMaxTokens);
    rows("local layers not counted", 0);
    rows("a window that leaves the current token out", *facts.window - 1);
    rows("a window that does not count the current token", *facts.window + 1);
    for (const int64_t step : {512, 1024, 2048}) {
      rows("local layers that keep the window and a micro-batch of " + std::to_string(step),
           *facts.window + step);
    }
  }
  if (facts.v_from_k_global) {
    using StoredOnce = CatalogAssumption::StoredOnce;
    list.push_back({"global layers that keep K and V once, as V",
                    {.geometry = {}, .local_rows = {}, .global_stored_once = StoredOnce::v}});
    list.push_back(
        {"global layers that keep K and V once, as V and the rotated part of K",
         {.geometry = {}, .local_rows = {}, .global_stored_once = StoredOnce::rotated_k_and_v}});
  }
  list.push_back({"half of it: K or V alone, or elements of half the size",
                  {.geometry = {}, .local_rows = {}, .times = 0.5}});
  list.push_back(
      {"twice of it: elements of twice the size", {.geometry = {}, .local_rows = {}, .times = 2}});
  return list;
}

}  // namespace

std::optional<std::string> usual_mistake(const Json& geometry, const CatalogQuery& query,
                                         int64_t tokens, double value, double within) {
  const Result<ModelFacts> facts = facts_from_json(geometry);
  if (!facts) return std::nullopt;
  for (const Mistake& mistake : mistakes_about(geometry, *facts)) {
    const Result<double> figure = catalog_figure(geometry, query, tokens, mistake.assumption);
    if (figure && is_close(*figure, value, within)) return mistake.text;
  }
  return std::nullopt;
}

}  // namespace weir
