// The catalog: what a model's KV costs, what was claimed about it and what was measured, one entry
// a model (docs/catalog.md). Everything in an entry but the sources can be recomputed, and is.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "geometry/builtin.h"
#include "geometry/kv_type.h"

namespace weir {

using OrderedJson = nlohmann::ordered_json;

// Figures that follow from a geometry. K and V both stored, windows exact, no blocks. Names in an
// entry are those of the enumerators.
enum class CatalogFigure : uint8_t {
  global_layers,  // number of them
  local_layers,
  is_global,                  // whether layer `layer` is: 1 or 0
  window,                     // tokens
  global_bytes_per_token,     // what each further token costs past the window
  local_bytes_per_token,      // of all local layers, while the windows fill
  local_bytes,                // of all local windows, full
  total_bytes,                // at `tokens`
  effective_bytes_per_token,  // total_bytes / tokens
  uniform_bytes,              // at `tokens`, if every layer that owns KV kept every token
  uniform_bytes_per_token,
  naive_bytes_per_token,  // if every layer, KV owner or not, kept every token at the widest row
  ratio,                  // total_bytes / uniform_bytes
  saving,                 // uniform_bytes / total_bytes
  crossover_tokens,       // first length at which global layers hold as much as full windows
};

struct CatalogQuery {
  CatalogFigure figure = CatalogFigure::total_bytes;
  KvType type = KvType::f16;
  std::optional<int64_t> bits =
      {};         // of an element, for claims that name no type; instead of `type`
  int layer = 0;  // of is_global
};

// What a claim takes for granted and the geometry does not say. Empty for the plain figure.
struct CatalogAssumption {
  nlohmann::json geometry;            // a merge patch over the entry's geometry; null: none
  std::optional<int64_t> local_rows;  // that local layers keep, instead of their window
  // Global layers whose K and V come from one projection keep it once.
  enum class StoredOnce : uint8_t {
    no,
    rotated_k_and_v,  // the rotated part of K beside V, which holds the rest of K
    v,                // V alone, K rotated when read
  };
  StoredOnce global_stored_once = StoredOnce::no;
  double times = 1;  // a factor on the figure
};

// The figure at `tokens`, in bytes, tokens, layers or as a plain ratio. Errors: invalid_input if
// the figure needs tokens and there are none, or the type cannot store the rows; corrupt if the
// patched geometry makes no sense.
Result<double> catalog_figure(const nlohmann::json& geometry, const CatalogQuery& query,
                              int64_t tokens, const CatalogAssumption& assumption = {});

// What would make the figure `value`: the first of the usual mistakes (other heads, another
// pattern, other rows, K alone, ...) that does, as half a sentence. Nothing if none does.
std::optional<std::string> usual_mistake(const nlohmann::json& geometry, const CatalogQuery& query,
                                         int64_t tokens, double value, double within);

enum class Verdict : uint8_t {
  holds,
  partly,  // of this geometry, in an engine that keeps other rows, or one projection once
  fails,
};

// What somebody said about a model's KV: one figure, at one or several lengths.
struct CatalogClaim {
  struct Point {
    int64_t tokens = 0;   // 0: the figure does not depend on it
    double claimed = 0;   // in `unit`
    double recorded = 0;  // what the entry says is right
  };
  std::string id, says, source, reason;
  CatalogQuery query;
  std::vector<Point> points;  // at least one
  std::string unit;
  double unit_size = 1;  // bytes (or plain units) of one `unit`
  double within = 0;     // in `unit`: the claim's own rounding
  std::optional<CatalogAssumption> assumes;
  Verdict verdict = Verdict::holds;  // as recorded
};

// What weir held after reading `tokens` random tokens with a model of these shapes.
struct CatalogMeasurement {
  int64_t tokens = 0;
  int64_t step_tokens = 512;
  KvType type = KvType::f16;
  int n_layers = 0;              // the first so many; 0: all
  std::string weights = "q8_0";  // type of the matrices; the KV does not depend on it
  int64_t global_bytes = 0, local_bytes = 0, resident_bytes = 0;
  std::string command, date;
};

struct CatalogEntry {
  OrderedJson json;  // as it was read
  nlohmann::json geometry;
  ModelFacts facts;
  OrderedJson derived;  // as recorded; null if absent
  std::vector<CatalogClaim> claims;
  std::vector<CatalogMeasurement> measured;
};

// Errors: corrupt, naming the field. Fields that the format does not know are errors.
Result<CatalogEntry> parse_catalog_entry(std::string_view text);
// The entries of the program's own catalog, in its order. Parsed once; any thread.
const std::vector<CatalogEntry>& builtin_catalog_entries();

// The `derived` object of an entry.
OrderedJson derived_figures(const nlohmann::json& geometry);

// Elements of all global layers per token if their one projection is stored once. Nothing if the
// model's global layers have two, or `how` needs to know what rotates and the facts do not say.
std::optional<int64_t> stored_once_elements(const ModelFacts& facts,
                                            CatalogAssumption::StoredOnce how);

// The model that consists of the first `n_layers` layers. Requires 1 <= n_layers <= the model's.
ModelFacts first_layers(const ModelFacts& facts, int n_layers);

// --- verifying --------------------------------------------------------------------------------

struct ClaimCheck {
  const CatalogClaim* claim = nullptr;
  Verdict verdict = Verdict::holds;  // as recomputed
  std::vector<double> computed;      // in the claim's unit, a value a point
  bool is_explained = false;         // its assumption gives exactly what was claimed
  std::string mistake;               // without an assumption: what would give the claimed figure
};

// Something in an entry that is not so.
struct CatalogDisagreement {
  std::string where;  // path in the entry
  std::string what;   // one line: both figures, and the cause
};

struct CatalogCheck {
  const CatalogEntry* entry = nullptr;
  std::vector<ClaimCheck> claims;
  std::vector<CatalogDisagreement> disagreements;
};

// Recomputes everything in an entry. The entry must outlive the result.
CatalogCheck check_catalog_entry(const CatalogEntry& entry);

// --- printing ---------------------------------------------------------------------------------

// The text of an entry's file, with derived figures recomputed.
std::string catalog_file(const CatalogEntry& entry);
std::string catalog_list_text(const std::vector<CatalogEntry>& entries);
std::string catalog_list_json(const std::vector<CatalogEntry>& entries);
std::string catalog_entry_text(const CatalogEntry& entry);
std::string catalog_checks_text(const std::vector<CatalogCheck>& checks);
std::string catalog_checks_json(const std::vector<CatalogCheck>& checks);

const char* figure_name(CatalogFigure figure);
std::optional<CatalogFigure> parse_figure(std::string_view name);
const char* verdict_name(Verdict verdict);  // "holds", "partly", "fails"
// 24192 as "24192", 4.9454545 as "4.945": integers in full, else four digits.
std::string plain_number(double value);
bool is_close(double a, double b, double within);

}  // namespace weir
