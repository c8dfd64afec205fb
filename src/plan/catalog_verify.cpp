#include <cmath>

#include "base/check.h"
#include "plan/catalog.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

using Json = nlohmann::json;

// What is recorded has six decimals at most.
bool is_recorded(double recorded, double computed) {
  return is_close(recorded, computed, 5e-7 + 1e-5 * std::abs(computed));
}

class Checker {
 public:
  explicit Checker(const CatalogEntry& entry) : entry_(entry) { check_.entry = &entry; }

  CatalogCheck run() {
    if (!entry_.derived.is_null()) {
      compare(derived_figures(entry_.geometry), entry_.derived, "derived", {}, 0);
    }
    for (const CatalogClaim& claim : entry_.claims) check_claim(claim);
    for (size_t i = 0; i < entry_.measured.size(); ++i) {
      check_measurement(entry_.measured[i], "measured[" + std::to_string(i) + "]");
    }
    return std::move(check_);
  }

 private:
  void disagree(std::string where, std::string what) {
    check_.disagreements.push_back({std::move(where), std::move(what)});
  }

  // `type` and `tokens` of the figures on the way down, for the cause.
  void compare(const OrderedJson& right, const OrderedJson& recorded, const std::string& path,
               CatalogQuery query, int64_t tokens) {
    if (right.is_object() && recorded.is_object()) {
      if (right.contains("tokens")) tokens = right["tokens"].get<int64_t>();
      for (const auto& [key, value] : right.items()) {
        CatalogQuery inner = query;
        if (const Result<KvType> type = parse_kv_type(key)) inner.type = *type;
        const std::string at = path + "." + key;
        if (recorded.contains(key)) {
          compare(value, recorded[key], at, inner, tokens);
        } else {
          disagree(at, "is missing; it is " + value.dump());
        }
      }
      for (const auto& [key, value] : recorded.items()) {
        if (!right.contains(key)) disagree(path + "." + key, "is no figure of this geometry");
      }
      return;
    }
    if (right.is_array() && recorded.is_array() && right.size() == recorded.size()) {
      for (size_t i = 0; i < right.size(); ++i) {
        compare(right[i], recorded[i], path + "[" + std::to_string(i) + "]", query, tokens);
      }
      return;
    }
    if (right.is_number() && recorded.is_number() &&
        is_close(right.get<double>(), recorded.get<double>(), 0)) {
      return;
    }
    if (right != recorded) disagree(path, wrong_figure(right, recorded, path, query, tokens));
  }

  std::string wrong_figure(const OrderedJson& right, const OrderedJson& recorded,
                           const std::string& path, CatalogQuery query, int64_t tokens) const {
    std::string text = "the entry says " + recorded.dump() + ", its geometry gives " + right.dump();
    const std::optional<CatalogFigure> figure = parse_figure(path.substr(path.rfind('.') + 1));
    if (!figure || !recorded.is_number()) return text;
    query.figure = *figure;
    const std::optional<std::string> mistake =
        usual_mistake(entry_.geometry, query, tokens, recorded.get<double>(), 0.005);
    return text + (mistake ? "; the entry's figure is that of " + *mistake : "");
  }

  // The figure with `assumption` at each point, in the claim's unit.
  std::vector<double> values(const CatalogClaim& claim, const CatalogAssumption& assumption) const {
    std::vector<double> list;
    for (const CatalogClaim::Point& point : claim.points) {
      // parse_catalog_entry has tried each.
      list.push_back(*catalog_figure(entry_.geometry, claim.query, point.tokens, assumption) /
                     claim.unit_size);
    }
    return list;
  }
  static bool is_claimed(const CatalogClaim& claim, const std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!is_close(values[i], claim.points[i].claimed, claim.within)) return false;
    }
    return true;
  }

  void check_claim(const CatalogClaim& claim) {
    ClaimCheck c;
    c.claim = &claim;
    c.computed = values(claim, {});
    const bool holds = is_claimed(claim, c.computed);
    c.is_explained = claim.assumes && is_claimed(claim, values(claim, *claim.assumes));
    const bool is_this_geometry =
        claim.assumes && claim.assumes->geometry.is_null() && claim.assumes->times == 1;
    c.verdict = holds                                ? Verdict::holds
                : c.is_explained && is_this_geometry ? Verdict::partly
                                                     : Verdict::fails;
    if (!holds && !c.is_explained) c.mistake = mistake_in(claim);

    const std::string where = "claim " + claim.id;
    if (c.verdict != claim.verdict) {
      disagree(where,
               std::string("is recorded as '") + verdict_name(claim.verdict) +
                   "', recomputed it is '" + verdict_name(c.verdict) + "'" +
                   (c.mistake.empty() ? "" : "; the claimed figure is that of " + c.mistake));
    }
    if (claim.assumes && !c.is_explained) {
      disagree(where, "what it is said to assume does not give the claimed figure" +
                          (c.mistake.empty() ? "" : "; that of " + c.mistake + " does"));
    }
    for (size_t i = 0; i < c.computed.size(); ++i)
      check_record(claim, claim.points[i], c.computed[i]);
    check_reason(claim, c);
    check_.claims.push_back(std::move(c));
  }

  void check_record(const CatalogClaim& claim, const CatalogClaim::Point& point, double computed) {
    if (is_recorded(point.recorded, computed)) return;
    disagree("claim " + claim.id,
             "records " + plain_number(point.recorded) + " " + claim.unit +
                 (point.tokens > 0 ? " at " + std::to_string(point.tokens) : "") +
                 " as right, its geometry gives " + plain_number(computed));
  }

  // A reason for a claim that does not hold names the right figures, so that it cannot go stale.
  void check_reason(const CatalogClaim& claim, const ClaimCheck& c) {
    if (c.verdict == Verdict::holds || claim.query.figure == CatalogFigure::is_global) return;
    std::string text = claim.reason;
    std::erase(text, ',');
    for (const double value : {c.computed.front(), c.computed.back()}) {
      if (text.find(plain_number(value)) != std::string::npos) continue;
      disagree("claim " + claim.id, "its reason does not name the right figure, " +
                                        plain_number(value) + " " + claim.unit);
      return;
    }
  }

  std::string mistake_in(const CatalogClaim& claim) const {
    const CatalogClaim::Point& last = claim.points.back();
    return usual_mistake(entry_.geometry, claim.query, last.tokens, last.claimed * claim.unit_size,
                         claim.within * claim.unit_size)
        .value_or("");
  }

  void check_measurement(const CatalogMeasurement& m, const std::string& where) {
    const KvGeometry geometry = geometry_of(first_layers(entry_.facts, m.n_layers));
    const KvFormat format = KvFormat::uniform(m.type, choose_block_tokens(geometry));
    const Result<KvPlanner> planner = KvPlanner::create(geometry, format);
    if (!planner) return disagree(where, planner.error().message());
    const KvPlan plan = planner->plan({.tokens = m.tokens, .ubatch = m.step_tokens});
    const std::tuple<const char*, int64_t, int64_t> figures[] = {
        {"global_bytes", m.global_bytes, plan.global.v},
        {"local_bytes", m.local_bytes, plan.local.v},
        {"resident_bytes", m.resident_bytes, plan.resident().v}};
    for (const auto& [name, measured, planned] : figures) {
      if (measured == planned) continue;
      disagree(where + "." + name, "measured " + std::to_string(measured) + ", planned " +
                                       std::to_string(planned) + " in blocks of " +
                                       std::to_string(format.block_tokens) + " tokens");
    }
  }

  const CatalogEntry& entry_;
  CatalogCheck check_;
};

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::holds:
      return "holds";
    case Verdict::partly:
      return "partly";
    case Verdict::fails:
      return "fails";
  }
  return "";
}

CatalogCheck check_catalog_entry(const CatalogEntry& entry) { return Checker(entry).run(); }

}  // namespace weir
