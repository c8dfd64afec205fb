// Reading entries: strict, because an entry may be a user's, and a misspelt field would be a check
// that is never made.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/bytes.h"
#include "base/check.h"
#include "base/quote.h"
#include "geometry/facts_json.h"
#include "geometry/geometry_draft.h"
#include "geometry/hf_json.h"
#include "plan/catalog.h"

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr size_t kMaxPoints = 64;

constexpr std::pair<const char*, double> kUnits[] = {
    {"B", 1},    {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}, {"KB", 1e3},   {"MB", 1e6},
    {"GB", 1e9}, {"x", 1},      {"%", 0.01},   {"layers", 1}, {"tokens", 1}, {"yes or no", 1}};

Status corrupt(std::string message) { return Status(Code::corrupt, std::move(message)); }

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

// One object of an entry: typed fields, the first fault remembered with its path.
class Section {
 public:
  Section(const Json& object, std::string path, std::initializer_list<std::string_view> known)
      : object_(object), path_(std::move(path)) {
    if (!object.is_object()) {
      fail(path_ + " is no object");
      return;
    }
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail(path_ + " has a field " + quote(key) + " that the format does not know");
      }
    }
  }

  std::string text(const char* key) {
    const Json* value = find(key);
    if (!value) return "";
    if (value->is_string() && !value->get_ref<const std::string&>().empty()) {
      return value->get<std::string>();
    }
    fail(where(key) + " must be a text");
    return "";
  }
  // Errors unless least <= value <= most.
  int64_t integer(const char* key, int64_t least, int64_t most) {
    const Json* value = find(key);
    return value ? integer_of(*value, where(key), least, most) : least;
  }
  int64_t integer_of(const Json& value, const std::string& at, int64_t least, int64_t most) {
    // Unsigned numbers past the signed range come out negative, and are out of range, too.
    const int64_t n = value.is_number_integer() ? value.get<int64_t>() : least - 1;
    if (n >= least && n <= most) return n;
    fail(at + " is " + shown(value) + "; it must be a whole number, " + std::to_string(least) +
         " to " + std::to_string(most));
    return least;
  }
  double number(const char* key) {
    const Json* value = find(key);
    return value ? number_of(*value, where(key)) : 0;
  }
  double number_of(const Json& value, const std::string& at) {
    if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
    if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
    fail(at + " is " + shown(value) + "; it must be a number");
    return 0;
  }
  KvType type(const char* key) {
    const Result<KvType> parsed = parse_kv_type(text(key));
    if (parsed) return *parsed;
    fail(where(key) + ": " + parsed.error().message());
    return KvType::f16;
  }

  bool has(const char* key) const { return object_.is_object() && object_.contains(key); }
  const Json* find(const char* key) {
    if (has(key)) return &object_.at(key);
    fail(where(key) + " is missing");
    return nullptr;
  }
  std::string where(const char* key) const { return path_ + "." + key; }
  void fail(std::string message) {
    if (status_.ok()) status_ = corrupt(std::move(message));
  }
  void take(const Section& inner) {
    if (status_.ok()) status_ = inner.status_;
  }
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  Status status_;
};

CatalogAssumption read_assumption(Section& claim) {
  CatalogAssumption assumption;
  const Json* object = claim.find("assumes");
  if (!object) return assumption;
  Section section(*object, claim.where("assumes"),
                  {"geometry", "local_rows", "global_stored_once", "times"});
  if (section.has("geometry")) assumption.geometry = *section.find("geometry");
  if (section.has("local_rows"))
    assumption.local_rows = section.integer("local_rows", 0, kMaxTokens);
  if (section.has("global_stored_once")) {
    const std::string how = section.text("global_stored_once");
    using StoredOnce = CatalogAssumption::StoredOnce;
    assumption.global_stored_once = how == "v" ? StoredOnce::v : StoredOnce::rotated_k_and_v;
    if (how != "v" && how != "rotated_k_and_v") {
      section.fail(section.where("global_stored_once") + " must be \"v\" or \"rotated_k_and_v\"");
    }
  }
  if (section.has("times")) assumption.times = section.number("times");
  claim.take(section);
  return assumption;
}

// (local_layers × local_rows + global_layers × N) / (uniform_layers × N), as claims write it.
double formula_at(const std::array<double, 4>& f, int64_t n) {
  const auto tokens = static_cast<double>(n);
  return (f[0] * f[1] + f[2] * tokens) / (f[3] * tokens);
}

std::array<double, 4> read_formula(Section& claim) {
  Section section(*claim.find("formula"), claim.where("formula"),
                  {"local_layers", "local_rows", "global_layers", "uniform_layers"});
  const std::array<double, 4> formula = {
      section.number("local_layers"), section.number("local_rows"), section.number("global_layers"),
      section.number("uniform_layers")};
  if (formula[3] <= 0) section.fail(section.where("uniform_layers") + " must be positive");
  claim.take(section);
  return formula;
}

// `key` holds one number, or one for each of `count` points.
std::vector<double> numbers(Section& claim, const char* key, size_t count) {
  const Json* value = claim.find(key);
  std::vector<double> list;
  if (!value) return std::vector<double>(count);
  if (value->is_array()) {
    for (const Json& one : *value) list.push_back(claim.number_of(one, claim.where(key)));
  } else {
    list.push_back(claim.number_of(*value, claim.where(key)));
  }
  if (list.size() != count) {
    claim.fail(claim.where(key) + " has " + std::to_string(list.size()) + " numbers for " +
               std::to_string(count) + " lengths");
    list.resize(count);
  }
  return list;
}

std::vector<CatalogClaim::Point> read_points(Section& claim, double unit_size) {
  std::vector<CatalogClaim::Point> points(1);
  if (claim.has("tokens")) {
    const Json& tokens = *claim.find("tokens");
    const Json list = tokens.is_array() ? tokens : Json::array({tokens});
    if (list.empty() || list.size() > kMaxPoints) claim.fail(claim.where("tokens") + " is no list");
    points.resize(std::clamp<size_t>(list.size(), 1, kMaxPoints));
    for (size_t i = 0; i < std::min(points.size(), list.size()); ++i) {
      points[i].tokens = claim.integer_of(list[i], claim.where("tokens"), 1, kMaxTokens);
    }
  }
  const std::vector<double> recorded = numbers(claim, "recomputed", points.size());
  for (size_t i = 0; i < points.size(); ++i) points[i].recorded = recorded[i];
  if (!claim.has("formula")) {
    const std::vector<double> claimed = numbers(claim, "value", points.size());
    for (size_t i = 0; i < points.size(); ++i) points[i].claimed = claimed[i];
    return points;
  }
  const std::array<double, 4> formula = read_formula(claim);
  for (CatalogClaim::Point& point : points) {
    point.claimed = formula_at(formula, std::max<int64_t>(1, point.tokens)) / unit_size;
  }
  return points;
}

void read_query(Section& claim, CatalogQuery& query) {
  const std::string name = claim.text("figure");
  if (const std::optional<CatalogFigure> figure = parse_figure(name)) {
    query.figure = *figure;
  } else {
    claim.fail(claim.where("figure") + " is " + quote(name) + ", which is no figure");
  }
  if (claim.has("kv_type")) query.type = claim.type("kv_type");
  if (claim.has("bits")) query.bits = claim.integer("bits", 1, 64);
  if (query.figure == CatalogFigure::is_global) {
    query.layer = static_cast<int>(claim.integer("layer", 0, kMaxLayers));
  }
  if (claim.has("formula") && query.figure != CatalogFigure::ratio) {
    claim.fail(claim.where("formula") + " is one of a ratio");
  }
}

Verdict read_verdict(Section& claim) {
  const Json* holds = claim.find("holds");
  if (!holds) return Verdict::fails;
  if (holds->is_boolean()) return holds->get<bool>() ? Verdict::holds : Verdict::fails;
  if (*holds != "partly") claim.fail(claim.where("holds") + " must be true, false or \"partly\"");
  return Verdict::partly;
}

Result<CatalogClaim> read_claim(const Json& json, const std::string& path, const Json& geometry) {
  Section section(json, path,
                  {"id", "says", "source", "figure", "layer", "kv_type", "bits", "tokens", "value",
                   "formula", "unit", "within", "assumes", "holds", "recomputed", "reason"});
  CatalogClaim claim;
  claim.id = section.text("id");
  claim.says = section.text("says");
  claim.source = section.text("source");
  claim.reason = section.text("reason");
  read_query(section, claim.query);
  claim.unit = section.text("unit");
  const auto unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                 [&](const auto& known) { return claim.unit == known.first; });
  if (unit == std::end(kUnits)) {
    section.fail(section.where("unit") + " is " + quote(claim.unit) + ", which is no unit");
  } else {
    claim.unit_size = unit->second;
  }
  if (section.has("within")) claim.within = section.number("within");
  claim.points = read_points(section, claim.unit_size);
  if (section.has("assumes")) claim.assumes = read_assumption(section);
  claim.verdict = read_verdict(section);
  if (!section.status().ok()) return section.status();
  // What cannot be computed is a fault of the entry, not a claim that fails.
  for (const CatalogClaim::Point& point : claim.points) {
    for (const CatalogAssumption& a :
         {CatalogAssumption(), claim.assumes.value_or(CatalogAssumption())}) {
      const Result<double> figure = catalog_figure(geometry, claim.query, point.tokens, a);
      if (!figure) return corrupt(path + ": " + figure.error().message());
    }
  }
  return claim;
}

Result<CatalogMeasurement> read_measurement(const Json& json, const std::string& path,
                                            const ModelFacts& facts) {
  Section section(json, path,
                  {"tokens", "step_tokens", "kv_type", "layers", "weights", "global_bytes",
                   "local_bytes", "resident_bytes", "command", "date"});
  constexpr int64_t kMost = int64_t{1} << 62;
  CatalogMeasurement m;
  m.tokens = section.integer("tokens", 1, kMaxTokens);
  m.step_tokens = section.integer("step_tokens", 1, kMaxTokens);
  m.type = section.type("kv_type");
  m.n_layers = static_cast<int>(section.integer("layers", 1, facts.n_layers));
  if (json.contains("weights")) m.weights = section.text("weights");
  m.global_bytes = section.integer("global_bytes", 0, kMost);
  m.local_bytes = section.integer("local_bytes", 0, kMost);
  m.resident_bytes = section.integer("resident_bytes", 0, kMost);
  m.command = section.text("command");
  m.date = section.text("date");
  if (!section.status().ok()) return section.status();
  return m;
}

const Json& list_of(const Json& entry, const char* key, Section& section) {
  static const Json empty = Json::array();
  const auto found = entry.find(key);
  if (found == entry.end()) return empty;
  if (found->is_array()) return *found;
  section.fail(std::string(key) + " is no list");
  return empty;
}

Status read_lists(const Json& json, Section& section, CatalogEntry& entry) {
  const Json& claims = list_of(json, "claims", section);
  for (size_t i = 0; i < claims.size(); ++i) {
    Result<CatalogClaim> claim =
        read_claim(claims[i], "claims[" + std::to_string(i) + "]", entry.geometry);
    if (!claim) return claim.error();
    for (const CatalogClaim& other : entry.claims) {
      if (other.id == claim->id) return corrupt("two claims are called " + quote(claim->id));
    }
    entry.claims.push_back(std::move(*claim));
  }
  const Json& measured = list_of(json, "measured", section);
  for (size_t i = 0; i < measured.size(); ++i) {
    Result<CatalogMeasurement> m =
        read_measurement(measured[i], "measured[" + std::to_string(i) + "]", entry.facts);
    if (!m) return m.error();
    entry.measured.push_back(std::move(*m));
  }
  return section.status();
}

}  // namespace

Result<CatalogEntry> parse_catalog_entry(std::string_view text) {
  const Result<Json> json = parse_untrusted_json(text);
  if (!json) return json.error();
  Section section(*json, "the entry", {"format", "geometry", "derived", "claims", "measured"});
  section.integer("format", kFormat, kFormat);
  const Json* geometry = section.find("geometry");
  if (!section.status().ok()) return section.status();
  CatalogEntry entry;
  entry.geometry = *geometry;
  Result<ModelFacts> facts = facts_from_json(*geometry);
  if (!facts) return facts.error();
  entry.facts = std::move(*facts);
  // Rows that no listed type can store are no entry either.
  const Result<double> rows = catalog_figure(
      *geometry, {.figure = CatalogFigure::uniform_bytes_per_token, .type = KvType::q4_0}, 0);
  if (!rows) return corrupt(rows.error().message());
  entry.json = OrderedJson::parse(text);
  if (entry.json.contains("derived")) entry.derived = entry.json["derived"];
  if (Status s = read_lists(*json, section, entry); !s.ok()) return s;
  return entry;
}

const std::vector<CatalogEntry>& builtin_catalog_entries() {
  // The catalog is part of the program: an entry that does not read is our bug.
  static const std::vector<CatalogEntry> entries = [] {
    std::vector<CatalogEntry> list;
    for (const OrderedJson& json : OrderedJson::parse(builtin_catalog())) {
      Result<CatalogEntry> entry = parse_catalog_entry(json.dump());
      WEIR_CHECK(entry.ok());
      list.push_back(std::move(*entry));
    }
    return list;
  }();
  return entries;
}

}  // namespace weir
