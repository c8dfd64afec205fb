#include <nlohmann/json.hpp>

#include "plan/plan_report.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

const char* source_name(ModelSource::Kind kind) {
  switch (kind) {
    case ModelSource::Kind::builtin:
      return "builtin";
    case ModelSource::Kind::gguf:
      return "gguf";
    case ModelSource::Kind::hf_config:
      return "config";
  }
  return "";
}

const char* pattern_name(PatternSource pattern) {
  switch (pattern) {
    case PatternSource::builtin:
      return "builtin";
    case PatternSource::file:
      return "file";
    case PatternSource::architecture:
      return "architecture";
    case PatternSource::assumed:
      return "assumed";
  }
  return "";
}

Json optional_number(const std::optional<int64_t>& n) { return n ? Json(*n) : Json(nullptr); }

Json row_json(const PlanRow& row) {
  return {{"context", row.context},
          {"resident_bytes", row.plan.resident().v},
          {"global_bytes", row.plan.global.v},
          {"local_bytes", row.plan.local.v},
          {"uniform_bytes", row.uniform.v},
          {"ratio", row.ratio()},
          {"headroom_bytes", row.plan.headroom.v},
          {"pool_rounding_bytes", row.plan.pool_rounding.v},
          {"total_bytes", row.plan.total().v},
          {"readable_bytes", row.readable.v},
          {"restart_bytes", row.restart_points.v},
          {"idle_bytes", row.idle.v},
          {"kept_bytes", row.kept().v},
          {"restart_points", row.rewind.points},
          {"rewind_tokens", row.rewind.bound},
          {"exact_resident_bytes", row.exact().v},
          {"exact_global_bytes", row.global.v},
          {"exact_local_bytes", row.local.v},
          {"exact_ratio", row.exact_ratio()}};
}

// The fields that depend on the KV type, added to `to`.
void add_type(Json& to, const TypeReport& report) {
  const KvFormat& format = report.format;
  to["kv_type"] = format.type_name();
  to["kv_type_k"] = kv_type_name(format.global_k);
  to["kv_type_v"] = kv_type_name(format.global_v);
  to["kv_type_local_k"] = kv_type_name(format.local_k);
  to["kv_type_local_v"] = kv_type_name(format.local_v);
  to["global_bytes_per_token"] = report.growth.global_per_token().v;
  const Bytes saved =
      report.sharing ? report.sharing->separate_per_token - report.sharing->per_token : Bytes{};
  to["global_bytes_per_token_separate"] = (report.growth.global_per_token() + saved).v;
  to["layers_stored_once"] = report.sharing ? report.sharing->n_layers : 0;
  to["local_bytes_per_token"] = report.growth.local_per_token().v;
  to["local_bytes"] = report.growth.local_bytes().v;
  to["crossover_tokens"] = optional_number(report.growth.crossover());
  to["rows"] = Json::array();
  for (const PlanRow& row : report.rows) to["rows"].push_back(row_json(row));
  if (!report.capacity) return;
  const PlanCapacity& c = *report.capacity;
  Json counts = Json::array();
  for (const PlanCapacity::Count& count : c.counts) {
    counts.push_back({{"context", count.context}, {"conversations", count.conversations}});
  }
  to["budget"] = {{"budget_bytes", c.budget.v},
                  {"max_tokens", c.is_unlimited ? Json(nullptr) : Json(c.most_tokens)},
                  {"is_unlimited", c.is_unlimited},
                  {"conversations", counts}};
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  const KvGeometry& g = report.geometry();
  Json json;
  json["model"] = report.source.label;
  json["layers"] = g.layers.size();
  Json global = Json::array(), local = Json::array(), without = Json::array(),
       reusing = Json::array();
  int64_t window = 0;
  for (const KvLayer& layer : g.layers) {
    if (layer.n_kv_heads == 0) {
      without.push_back(layer.index);
      continue;
    }
    const bool is_global = layer.retention.kind == LayerKind::global;
    (is_global ? global : local).push_back(layer.index);
    if (!layer.owns_kv()) reusing.push_back(layer.index);
    window = std::max(window, layer.retention.window);
  }
  json["global_layers"] = global;
  json["local_layers"] = local;
  json["window"] = window > 0 ? Json(window) : Json(nullptr);
  add_type(json, report.main());

  json["name"] = g.name;
  json["arch"] = g.arch;
  json["source"] = source_name(report.source.kind);
  json["pattern"] = pattern_name(g.pattern);
  if (report.source.facts) json["verified"] = report.source.facts->verified;
  json["max_context"] = g.max_context > 0 ? Json(g.max_context) : Json(nullptr);
  json["layers_reusing_kv"] = reusing;
  json["layers_without_kv"] = without;
  json["block_tokens"] = report.block_tokens;
  json["kv_share"] = report.main().format.share ? "auto" : "off";
  json["ubatch"] = report.options.ubatch;
  json["parallel"] = report.options.parallel;
  json["idle"] = report.options.idle;
  json["rewind_bound"] = report.options.rewind_bound;
  json["notes"] = g.notes;
  if (report.types.size() > 1) {
    json["by_type"] = Json::array();
    for (const TypeReport& type : report.types) {
      Json one;
      add_type(one, type);
      json["by_type"].push_back(one);
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
