#include <fmt/format.h>

#include "plan/chart.h"
#include "plan/layer_kinds.h"
#include "plan/plan_report.h"

namespace weir {
namespace {

constexpr const char* kStyle = R"(<style>
  :root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --line: #d8dee4; --back: #f6f8fa; --panel: #ffffff; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #f0f3f6; --soft: #9aa4ae; --line: #30363d; --back: #010409; --panel: #0d1117; }
  }
  body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
  main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
  h1 { font-size: 28px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 8px; }
  p { color: var(--soft); margin: 4px 0; } .note { color: var(--ink); border-left: 4px solid #d4a72c; padding-left: 12px; }
  svg { width: 100%; height: auto; margin-top: 20px; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; background: var(--panel); border: 1px solid var(--line); font-variant-numeric: tabular-nums; }
  th, td { padding: 7px 9px; text-align: right; border-top: 1px solid var(--line); white-space: nowrap; }
  th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; border-top: 0; }
  tr.sum td { font-weight: 650; }
</style>
)";

using Row = std::vector<std::string>;

std::string table(const Row& head, const std::vector<Row>& rows, bool last_is_sum = false) {
  std::string html = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const std::string& cell : head) html += "<th>" + xml_escape(cell) + "</th>";
  html += "</tr></thead>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    html += last_is_sum && i + 1 == rows.size() ? "<tr class=\"sum\">" : "<tr>";
    for (const std::string& cell : rows[i]) html += "<td>" + xml_escape(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string layers(const PlanReport& report) {
  const LayerSummary summary = summarize_layers(report.geometry());
  std::vector<Row> rows;
  for (const LayerKindSummary& k : summary.kinds) {
    const Bytes per_token = k.n_layers * k.row_bytes(report.main().format);
    const bool is_global = k.retention.kind == LayerKind::global;
    rows.push_back({fmt::format("{} {}", k.n_layers, kind_name(k.retention.kind)),
                    fmt::format("{} × {} + {}", k.n_kv_heads, k.k_dim, k.v_dim),
                    format_bytes(per_token),
                    is_global ? "–" : fmt::format("{} tokens", k.retention.window),
                    is_global ? "grows" : format_bytes(k.retention.window * per_token)});
  }
  std::string html = table({"layers", "KV heads × K + V", "per token", "window", "fixed"}, rows);
  if (const auto& sharing = report.main().sharing) {
    html += fmt::format(
        "<p>K and V of {} global layers come from one projection and are stored once: {} of {} "
        "elements a head.</p>\n",
        sharing->n_layers, sharing->k_stored + sharing->v_dim, sharing->k_dim + sharing->v_dim);
  }
  if (summary.n_reusing > 0) {
    html += fmt::format("<p>{} more layers read an earlier layer's KV and own none.</p>\n",
                        summary.n_reusing);
  }
  if (summary.n_without_kv > 0) {
    html +=
        fmt::format("<p>{} more layers have no attention and no KV.</p>\n", summary.n_without_kv);
  }
  return html;
}

std::string contexts(const TypeReport& type) {
  std::vector<Row> rows;
  for (const PlanRow& r : type.rows) {
    rows.push_back({short_tokens(r.context), format_bytes(r.plan.global),
                    format_bytes(r.plan.local), format_bytes(r.plan.resident()),
                    format_bytes(r.uniform), fmt::format("{:.1f} %", 100 * r.ratio()),
                    format_bytes(r.plan.headroom), format_bytes(r.plan.pool_rounding),
                    format_bytes(r.plan.total())});
  }
  return table({"context", "global", "local", "resident", "uniform", "ratio", "step headroom",
                "pool rounding", "total"},
               rows);
}

std::string capacity(const TypeReport& type) {
  if (!type.capacity) return "";
  const PlanCapacity& c = *type.capacity;
  std::vector<Row> rows;
  for (const PlanCapacity::Count& count : c.counts) {
    rows.push_back({short_tokens(count.context), std::to_string(count.conversations)});
  }
  const std::string longest = c.is_unlimited      ? "any length"
                              : c.most_tokens < 1 ? "no token"
                                                  : fmt::format("{} tokens", c.most_tokens);
  return fmt::format("<h2>What {} of {} KV hold</h2>\n<p>Longest context that fits: {}.</p>\n",
                     format_bytes(c.budget), xml_escape(type.format.type_name()), longest) +
         table({"context", "conversations"}, rows);
}

}  // namespace

std::string plan_html(const PlanReport& report) {
  const KvGeometry& g = report.geometry();
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      xml_escape(g.name) + ": KV plan</title>\n" + kStyle + "</head>\n<body><main>\n";
  html +=
      "<h1>" + xml_escape(g.name) + "</h1>\n<p>" +
      xml_escape(fmt::format("{} · {} layers · blocks of {} tokens · steps of up to {} tokens · "
                             "conversations at once: {}",
                             g.arch, g.layers.size(), report.block_tokens, report.options.ubatch,
                             report.options.parallel)) +
      "</p>\n";
  for (const std::string& note : g.notes)
    html += "<p class=\"note\">" + xml_escape(note) + "</p>\n";
  html += plan_svg(report);
  html +=
      "<h2>Layers (" + xml_escape(report.main().format.type_name()) + ")</h2>\n" + layers(report);
  for (const TypeReport& type : report.types) {
    html += "<h2>By context (" + xml_escape(type.format.type_name()) + ")</h2>\n" + contexts(type);
    if (const std::optional<int64_t> n = type.growth.crossover()) {
      html += fmt::format(
          "<p>From {} tokens on the global layers hold more than the full windows."
          "</p>\n",
          *n);
    }
    html += capacity(type);
  }
  return html + "</main></body>\n</html>\n";
}

}  // namespace weir
