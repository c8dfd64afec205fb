#include <algorithm>

#include "geometry/facts_json.h"
#include "plan/catalog.h"

namespace weir {
namespace {

constexpr size_t kLine = 110;

bool is_scalar(const OrderedJson& json) { return !json.is_structured(); }

// The layout of an entry's file: lists of plain values in one line, objects of plain values in one
// line where they fit, everything else a line a field.
std::string laid_out(const OrderedJson& json, size_t indent) {
  if (is_scalar(json) || json.empty()) return json.dump();
  const std::string pad(indent + 2, ' ');
  const bool is_flat = std::all_of(json.begin(), json.end(), is_scalar);
  std::string line, lines;
  for (const auto& [key, value] : json.items()) {
    const std::string name = json.is_array() ? "" : OrderedJson(key).dump() + ": ";
    line += (line.empty() ? "" : ", ") + name + (is_flat ? value.dump() : "");
    lines += (lines.empty() ? "" : ",\n") + pad + name + laid_out(value, indent + 2);
  }
  const char* brackets = json.is_array() ? "[]" : "{}";
  if (is_flat && (json.is_array() || indent + line.size() + 2 <= kLine)) {
    return brackets[0] + line + brackets[1];
  }
  return brackets[0] + ("\n" + lines + "\n") + std::string(indent, ' ') + brackets[1];
}

OrderedJson claim_json(const ClaimCheck& check) {
  const CatalogClaim& claim = *check.claim;
  OrderedJson points = OrderedJson::array();
  for (size_t i = 0; i < claim.points.size(); ++i) {
    OrderedJson point;
    if (claim.points[i].tokens > 0) point["tokens"] = claim.points[i].tokens;
    point["claimed"] = claim.points[i].claimed;
    point["computed"] = check.computed[i];
    points.push_back(point);
  }
  return {{"id", claim.id},
          {"says", claim.says},
          {"source", claim.source},
          {"figure", figure_name(claim.query.figure)},
          {"unit", claim.unit},
          {"within", claim.within},
          {"points", points},
          {"verdict", verdict_name(check.verdict)},
          {"assumption_explains_it", check.is_explained},
          {"mistake", check.mistake.empty() ? OrderedJson(nullptr) : OrderedJson(check.mistake)},
          {"reason", claim.reason}};
}

}  // namespace

std::string catalog_file(const CatalogEntry& entry) {
  OrderedJson file;
  file["format"] = entry.json["format"];
  file["geometry"] = entry.json["geometry"];
  file["derived"] = derived_figures(entry.geometry);
  for (const char* list : {"claims", "measured"}) {
    file[list] = entry.json.contains(list) ? entry.json[list] : OrderedJson::array();
  }
  return laid_out(file, 0) + "\n";
}

std::string catalog_list_json(const std::vector<CatalogEntry>& entries) {
  OrderedJson list = OrderedJson::array();
  for (const CatalogEntry& entry : entries) {
    const OrderedJson derived = derived_figures(entry.geometry);
    const OrderedJson& f16 = derived["codecs"]["f16"];
    list.push_back({{"id", entry.facts.id},
                    {"name", entry.facts.name},
                    {"verified", entry.facts.verified},
                    {"global_layers", derived["layers"]["global"]},
                    {"local_layers", derived["layers"]["local"]},
                    {"window", entry.json["geometry"]["window"]},
                    {"max_context", entry.facts.max_context},
                    {"global_bytes_per_token", f16["global_bytes_per_token"]},
                    {"local_bytes", f16["local_bytes"]},
                    {"total_bytes_at_max_context", f16["contexts"].back()["total_bytes"]},
                    {"ratio_at_max_context", f16["contexts"].back()["ratio"]},
                    {"claims", entry.claims.size()},
                    {"measured", entry.measured.size()}});
  }
  return OrderedJson({{"entries", list}}).dump(2) + "\n";
}

std::string catalog_checks_json(const std::vector<CatalogCheck>& checks) {
  OrderedJson entries = OrderedJson::array();
  size_t n_disagreements = 0;
  for (const CatalogCheck& check : checks) {
    OrderedJson claims = OrderedJson::array(), disagreements = OrderedJson::array();
    for (const ClaimCheck& claim : check.claims) claims.push_back(claim_json(claim));
    for (const CatalogDisagreement& d : check.disagreements) {
      disagreements.push_back({{"where", d.where}, {"what", d.what}});
    }
    n_disagreements += check.disagreements.size();
    entries.push_back({{"id", check.entry->facts.id},
                       {"claims", claims},
                       {"measured", check.entry->measured.size()},
                       {"disagreements", disagreements}});
  }
  return OrderedJson({{"entries", entries}, {"disagreements", n_disagreements}})
             .dump(2, ' ', false, OrderedJson::error_handler_t::replace) +
         "\n";
}

}  // namespace weir
