#include <fmt/format.h>

#include <algorithm>

#include "plan/layer_kinds.h"
#include "plan/plan_report.h"
#include "plan/text_table.h"

namespace weir {
namespace {

std::string percent(double ratio) { return fmt::format("{:.1f} %", 100 * ratio); }

std::string plural(int64_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string heading(const PlanReport& report) {
  const KvGeometry& g = report.geometry();
  std::string text = report.source.label;
  if (g.name != text && !g.name.empty()) text = g.name + " (" + text + ")";
  text += "   " + g.arch + ", " + plural(static_cast<int64_t>(g.layers.size()), "layer");
  if (g.max_context > 0) text += ", context up to " + std::to_string(g.max_context);
  if (report.source.facts && !report.source.facts->verified) text += "   UNVERIFIED";
  text += "\n";
  for (const std::string& note : g.notes) text += "note: " + note + "\n";
  return text + "\n";
}

// Says that K and V are stored once, or that they could be.
std::string sharing_line(const PlanReport& report, const TypeReport& t) {
  const std::string type = report.types.size() > 1 ? " (" + t.format.type_name() + ")" : "";
  if (t.sharing) {
    const PlanSharing& s = *t.sharing;
    return fmt::format(
        "  K and V of {} global layers come from one projection and are stored once: {} of {} "
        "elements a head, {} instead of {} per token{}; --kv-share off stores both\n",
        s.n_layers, s.k_stored + s.v_dim, s.k_dim + s.v_dim, format_bytes(s.per_token),
        format_bytes(s.separate_per_token), type);
  }
  const auto& layers = report.geometry().layers;
  const auto n = std::count_if(layers.begin(), layers.end(), [](const KvLayer& layer) {
    return layer.owns_kv() && layer.storage == KvStorage::shared;
  });
  if (n == 0) return "";
  return fmt::format(
      "  K and V of {} layers come from one projection; counted and stored apart{}{}\n", n, type,
      t.format.share ? ": storing them once needs one type for both" : " (--kv-share off)");
}

std::string layers_table(const PlanReport& report) {
  const LayerSummary summary = summarize_layers(report.geometry());
  const bool several = report.types.size() > 1;
  std::vector<std::string> head = {"layers", "KV heads × K + V"};
  for (const TypeReport& t : report.types) {
    head.push_back(several ? t.format.type_name() + "/token" : "per token");
  }
  head.push_back("reads");
  for (const TypeReport& t : report.types) {
    head.push_back(several ? t.format.type_name() + " fixed" : "fixed");
  }
  TextTable table(head);
  for (const LayerKindSummary& kind : summary.kinds) {
    const bool is_global = kind.retention.kind == LayerKind::global;
    std::vector<std::string> row = {
        fmt::format("{} {}", kind.n_layers, kind_name(kind.retention.kind)),
        fmt::format("{} × {} + {}", kind.n_kv_heads, kind.k_dim, kind.v_dim)};
    for (const TypeReport& t : report.types) {
      row.push_back(format_bytes(kind.n_layers * kind.row_bytes(t.format)));
    }
    const bool is_chunked = kind.retention.kind == LayerKind::chunked;
    row.push_back(is_global ? "every token"
                            : fmt::format("{} {}", is_chunked ? "its chunk of" : "the last",
                                          kind.retention.window));
    for (const TypeReport& t : report.types) {
      row.push_back(is_global ? "grows"
                              : format_bytes(kind.retention.window * kind.n_layers *
                                             kind.row_bytes(t.format)));
    }
    table.add(row);
  }
  std::string text = table.text("  ");
  for (const TypeReport& t : report.types) text += sharing_line(report, t);
  if (summary.n_reusing > 0) {
    text += fmt::format("  {} more read an earlier layer's KV and own none\n", summary.n_reusing);
  }
  if (summary.n_without_kv > 0) {
    text += fmt::format("  {} more have no attention and no KV\n", summary.n_without_kv);
  }
  return text + "\n";
}

std::string contexts_table(const PlanReport& report) {
  const bool several = report.types.size() > 1;
  std::vector<std::string> head = {"context"};
  if (several) {
    for (const TypeReport& t : report.types) head.push_back(t.format.type_name());
    head.push_back("uniform " + report.main().format.type_name());
  } else {
    head.insert(head.end(), {"global", "local", "resident", "uniform"});
  }
  head.push_back("ratio");
  TextTable table(head);
  for (size_t i = 0; i < report.main().rows.size(); ++i) {
    const PlanRow& row = report.main().rows[i];
    std::vector<std::string> cells = {short_tokens(row.context)};
    if (several) {
      for (const TypeReport& t : report.types) {
        cells.push_back(format_bytes(t.rows[i].plan.resident()));
      }
    } else {
      cells.push_back(format_bytes(row.plan.global));
      cells.push_back(format_bytes(row.plan.local));
      cells.push_back(format_bytes(row.plan.resident()));
    }
    cells.push_back(format_bytes(row.uniform));
    cells.push_back(percent(row.ratio()));
    table.add(cells);
  }
  std::string text = table.text("  ");
  const KvGrowth& growth = report.main().growth;
  if (const std::optional<int64_t> n = growth.crossover()) {
    int64_t window = 0;
    for (const KvGrowth::Local& l : growth.locals()) window = std::max(window, l.retention.window);
    text += *n <= window ? "\n  The global layers hold more than the local ones from the start.\n"
                         : fmt::format(
                               "\n  From {} tokens on the global layers hold more than the full "
                               "windows.\n",
                               *n);
  } else if (growth.global_per_token().v == 0) {
    text += "\n  Every layer is local: past the window the KV no longer grows.\n";
  } else {
    text += "\n  Every layer is global: no window bounds the KV.\n";
  }
  for (const KvGrowth::Local& l : growth.locals()) {
    if (l.retention.kind != LayerKind::chunked) continue;
    text += fmt::format(
        "  A chunk's KV is freed when the chunk ends: at a multiple of {} tokens none is held.\n",
        l.retention.window);
  }
  const int64_t max = report.geometry().max_context;
  if (max > 0 && report.options.contexts.back() > max) {
    text +=
        fmt::format("  The model's context ends at {}; lengths beyond it are arithmetic.\n", max);
  }
  return text + "\n";
}

std::string engine_lines(const PlanReport& report) {
  const PlanOptions& o = report.options;
  const PlanRow& main = report.main().rows.back();
  std::string text =
      fmt::format("  What the engine takes for {} of {} tokens, steps of up to {}:\n",
                  plural(o.parallel, "conversation"), main.context, o.ubatch);
  const bool several = report.types.size() > 1;
  std::vector<std::string> head = {""};
  for (const TypeReport& t : report.types) head.push_back(several ? t.format.type_name() : "");
  std::vector<std::string> readable = {"rows that the next token reads"},
                           rounding = {
                               fmt::format("rounding to blocks of {} tokens", report.block_tokens)};
  std::vector<std::string> headroom = {"headroom for a step"}, pools = {"rounding of the pools"};
  std::vector<std::string> total = {"total"};
  for (const TypeReport& t : report.types) {
    const PlanRow& row = t.rows.back();
    readable.push_back(format_bytes(row.readable));
    rounding.push_back(format_bytes(row.plan.resident() - row.readable));
    headroom.push_back(format_bytes(row.plan.headroom));
    pools.push_back(format_bytes(row.plan.pool_rounding));
    total.push_back(format_bytes(row.plan.total()));
  }
  TextTable table(several ? head : readable);
  if (several) table.add(readable);
  for (const auto& line : {rounding, headroom, pools, total}) table.add(line);
  return text + table.text("    ");
}

// What keeping conversations costs beyond running them: memory that gives way when it is needed.
std::string keeping_lines(const PlanReport& report) {
  const PlanOptions& o = report.options;
  const PlanRow& main = report.main().rows.back();
  const RewindPlan& rewind = main.rewind;
  std::string text = "\n  What is kept on top while there is room:\n";
  std::vector<std::string> points = {
      rewind.healing < 0 ? "nothing: without windows every block boundary is a restart point"
      : rewind.distance == 0
          ? fmt::format("a restart point at the end: windows are rebuilt from {} tokens",
                        rewind.healing)
          : fmt::format("{} of each conversation, one every {} tokens",
                        plural(rewind.points, "restart point"), rewind.distance)};
  std::vector<std::string> idle = {plural(o.idle, "idle conversation")}, all = {"with these"};
  for (const TypeReport& t : report.types) {
    points.push_back(format_bytes(t.rows.back().restart_points));
    idle.push_back(format_bytes(t.rows.back().idle));
    all.push_back(format_bytes(t.rows.back().kept()));
  }
  TextTable table(points);
  if (o.idle > 0) table.add(idle);
  table.add(all);
  return text + table.text("    ") +
         fmt::format("  Going back to any point then reads at most {} tokens again.\n",
                     rewind.bound);
}

std::string budget_lines(const PlanReport& report) {
  std::string text;
  for (const TypeReport& t : report.types) {
    if (!t.capacity) continue;
    const PlanCapacity& c = *t.capacity;
    text += fmt::format("\n  With {} for KV ({}):\n", format_bytes(c.budget), t.format.type_name());
    const std::string who = plural(report.options.parallel, "conversation");
    const int64_t max = report.geometry().max_context;
    if (c.most_tokens < 1) {
      text += fmt::format("    not one token of {} fits\n", who);
    } else if (c.is_unlimited) {
      text += fmt::format("    {} of any length\n", who);
    } else {
      text += fmt::format(
          "    {} of up to {} tokens{}\n", who, c.most_tokens,
          max > 0 && c.most_tokens >= max ? fmt::format(" (the model's context is {})", max) : "");
    }
    TextTable table({"context", "conversations"});
    for (const PlanCapacity::Count& count : c.counts) {
      table.add({short_tokens(count.context), std::to_string(count.conversations)});
    }
    text += table.text("    ");
  }
  return text;
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  std::string types;
  for (const TypeReport& t : report.types)
    types += (types.empty() ? "" : "; ") + t.format.type_name();
  return heading(report) + "  KV type " + types + "\n\n" + layers_table(report) +
         contexts_table(report) + engine_lines(report) + keeping_lines(report) +
         budget_lines(report);
}

}  // namespace weir
