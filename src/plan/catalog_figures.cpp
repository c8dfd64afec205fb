// The arithmetic of the catalog: figures of a geometry, and of what claims assume instead of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "geometry/facts_json.h"
#include "geometry/geometry_draft.h"
#include "geometry/growth.h"
#include "plan/catalog.h"

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr std::pair<CatalogFigure, const char*> kFigures[] = {
    {CatalogFigure::global_layers, "global_layers"},
    {CatalogFigure::local_layers, "local_layers"},
    {CatalogFigure::is_global, "is_global"},
    {CatalogFigure::window, "window"},
    {CatalogFigure::global_bytes_per_token, "global_bytes_per_token"},
    {CatalogFigure::local_bytes_per_token, "local_bytes_per_token"},
    {CatalogFigure::local_bytes, "local_bytes"},
    {CatalogFigure::total_bytes, "total_bytes"},
    {CatalogFigure::effective_bytes_per_token, "effective_bytes_per_token"},
    {CatalogFigure::uniform_bytes, "uniform_bytes"},
    {CatalogFigure::uniform_bytes_per_token, "uniform_bytes_per_token"},
    {CatalogFigure::naive_bytes_per_token, "naive_bytes_per_token"},
    {CatalogFigure::ratio, "ratio"},
    {CatalogFigure::saving, "saving"},
    {CatalogFigure::crossover_tokens, "crossover_tokens"},
};

// K and V both stored, whatever the projection gives.
KvGeometry separate_storage(const ModelFacts& facts) {
  KvGeometry geometry = geometry_of(facts);
  for (KvLayer& layer : geometry.layers) layer.storage = KvStorage::separate;
  return geometry;
}

double widest_row(const KvGeometry& geometry, KvType type) {
  int64_t widest = 0;
  for (const KvLayer& layer : geometry.layers) {
    widest = std::max(widest, layer.n_kv_heads * (kv_row_bytes(type, layer.k_dim) +
                                                  kv_row_bytes(type, layer.v_dim)));
  }
  return static_cast<double>(widest);
}

// What one assumption makes of a geometry: bytes at any length.
class Bill {
 public:
  // Errors: invalid_input if the type cannot store the rows, or nothing can be stored once.
  static Result<Bill> of(const ModelFacts& facts, KvType type,
                         const CatalogAssumption& assumption) {
    const KvGeometry geometry = separate_storage(facts);
    const Result<KvGrowth> growth = KvGrowth::of(geometry, KvFormat::uniform(type));
    if (!growth) return growth.error();
    Bill bill(*growth, assumption);
    bill.global_ = static_cast<double>(growth->global_per_token().v);
    bill.naive_ = static_cast<double>(geometry.layers.size()) * widest_row(geometry, type);
    if (assumption.global_stored_once != CatalogAssumption::StoredOnce::no) {
      const auto once = stored_once_elements(facts, assumption.global_stored_once);
      if (!once) return Status(Code::invalid_input, "no projection of this model is stored once");
      const LayerKindFacts& kind = *facts.global;
      const double both = static_cast<double>(growth->n_global_layers()) * kind.n_head_kv *
                          (kind.head_dim_k + kind.head_dim_v);
      bill.global_ *= static_cast<double>(*once) / both;
    }
    return bill;
  }

  double global_per_token() const { return global_; }
  double local_per_token() const { return static_cast<double>(growth_.local_per_token().v); }
  double uniform(int64_t n) const { return static_cast<double>(n) * (global_ + local_per_token()); }
  double naive_per_token() const { return naive_; }
  double total(int64_t n) const { return static_cast<double>(n) * global_ + local(n); }
  double local_windows() const { return local(kMaxTokens); }
  double crossover() const {
    return global_ > 0 && local_per_token() > 0 ? std::ceil(local_windows() / global_) : 0;
  }

 private:
  Bill(KvGrowth growth, const CatalogAssumption& assumption)
      : growth_(std::move(growth)), local_rows_(assumption.local_rows) {}

  // Local rows at n tokens: the window's, or as many as the assumption says.
  double local(int64_t n) const {
    double sum = 0;
    for (const KvGrowth::Local& local : growth_.locals()) {
      const int64_t rows = local_rows_.value_or(local.retention.window);
      sum += static_cast<double>((std::min(n, rows) * local.per_token).v);
    }
    return sum;
  }

  KvGrowth growth_;
  std::optional<int64_t> local_rows_;
  double global_ = 0, naive_ = 0;
};

double bytes_figure(CatalogFigure figure, const Bill& bill, int64_t n) {
  switch (figure) {
    case CatalogFigure::global_bytes_per_token:
      return bill.global_per_token();
    case CatalogFigure::local_bytes_per_token:
      return bill.local_per_token();
    case CatalogFigure::local_bytes:
      return bill.local_windows();
    case CatalogFigure::total_bytes:
      return bill.total(n);
    case CatalogFigure::effective_bytes_per_token:
      return bill.total(n) / static_cast<double>(n);
    case CatalogFigure::uniform_bytes:
      return bill.uniform(n);
    case CatalogFigure::uniform_bytes_per_token:
      return bill.uniform(1);
    case CatalogFigure::naive_bytes_per_token:
      return bill.naive_per_token();
    case CatalogFigure::ratio:
      return bill.total(n) / bill.uniform(n);
    case CatalogFigure::saving:
      return bill.uniform(n) / bill.total(n);
    case CatalogFigure::crossover_tokens:
      return bill.crossover();
    default:
      WEIR_CHECK(false && "a figure without bytes");
  }
}

bool needs_tokens(CatalogFigure figure) {
  switch (figure) {
    case CatalogFigure::total_bytes:
    case CatalogFigure::effective_bytes_per_token:
    case CatalogFigure::uniform_bytes:
    case CatalogFigure::ratio:
    case CatalogFigure::saving:
      return true;
    default:
      return false;
  }
}

// Whether the figure scales with the size of an element.
bool is_bytes(CatalogFigure figure) {
  return figure != CatalogFigure::ratio && figure != CatalogFigure::saving &&
         figure != CatalogFigure::crossover_tokens;
}

}  // namespace

const char* figure_name(CatalogFigure figure) {
  for (const auto& [known, name] : kFigures) {
    if (known == figure) return name;
  }
  return "";
}

std::optional<CatalogFigure> parse_figure(std::string_view name) {
  for (const auto& [figure, known] : kFigures) {
    if (name == known) return figure;
  }
  return std::nullopt;
}

std::string plain_number(double value) {
  char text[64];
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e15;
  std::snprintf(text, sizeof text, is_whole ? "%.0f" : "%.4g", value);
  return text;
}

bool is_close(double a, double b, double within) {
  // Figures come from one division at most: a few units in the last place.
  return std::abs(a - b) <= within + 1e-12 * std::max(std::abs(a), std::abs(b));
}

Result<double> catalog_figure(const Json& geometry, const CatalogQuery& query, int64_t tokens,
                              const CatalogAssumption& assumption) {
  Json patched = geometry;
  if (assumption.geometry.is_object()) patched.merge_patch(assumption.geometry);
  const Result<ModelFacts> facts = facts_from_json(patched);
  if (!facts) return facts.error();
  const auto n_global = static_cast<double>(facts->global_layers.size());
  switch (query.figure) {
    case CatalogFigure::global_layers:
      return assumption.times * n_global;
    case CatalogFigure::local_layers:
      return assumption.times * (facts->n_layers - n_global);
    case CatalogFigure::is_global:
      return facts->is_global(query.layer) ? 1.0 : 0.0;
    case CatalogFigure::window:
      return static_cast<double>(facts->window.value_or(0));
    default:
      break;
  }
  if (needs_tokens(query.figure) && (tokens < 1 || tokens > kMaxTokens)) {
    return Status(Code::invalid_input,
                  std::string(figure_name(query.figure)) + " is of a number of tokens, 1 to " +
                      std::to_string(kMaxTokens) + ", not of " + std::to_string(tokens));
  }
  const KvType type = query.bits ? KvType::f16 : query.type;
  const Result<Bill> bill = Bill::of(*facts, type, assumption);
  if (!bill) return bill.error();
  double value = bytes_figure(query.figure, *bill, tokens);
  if (query.bits && is_bytes(query.figure)) value *= static_cast<double>(*query.bits) / 16;
  return assumption.times * value;
}

std::optional<int64_t> stored_once_elements(const ModelFacts& facts,
                                            CatalogAssumption::StoredOnce how) {
  if (!facts.v_from_k_global || !facts.global || how == CatalogAssumption::StoredOnce::no) {
    return std::nullopt;
  }
  int64_t n_owners = 0;
  for (const int layer : facts.global_layers) {
    n_owners += facts.kv_source[static_cast<size_t>(layer)] == layer;
  }
  const LayerKindFacts& kind = *facts.global;
  const int64_t heads = n_owners * kind.n_head_kv;
  if (how == CatalogAssumption::StoredOnce::v) return heads * kind.head_dim_v;
  if (!kind.rope_dims) return std::nullopt;
  return heads * (kind.head_dim_v + *kind.rope_dims);
}

ModelFacts first_layers(const ModelFacts& facts, int n_layers) {
  WEIR_CHECK(n_layers >= 1 && n_layers <= facts.n_layers);
  ModelFacts cut = facts;
  cut.n_layers = n_layers;
  std::erase_if(cut.global_layers, [&](int layer) { return layer >= n_layers; });
  cut.kv_source.resize(static_cast<size_t>(n_layers));
  if (cut.global_layers.empty()) cut.global.reset();
  if (std::ssize(cut.global_layers) == n_layers) {
    cut.local.reset();
    cut.window.reset();
    cut.attention_kind = "full";
  }
  return cut;
}

}  // namespace weir
