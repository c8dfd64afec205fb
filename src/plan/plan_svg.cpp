#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/chart.h"
#include "plan/plan_report.h"

namespace weir {
namespace {

constexpr int kPoints = 240;

// The curve's lengths: evenly spaced on the axis, and the places where it bends.
std::vector<int64_t> sample(int64_t first, int64_t last, bool is_log, const KvGrowth& growth) {
  std::vector<int64_t> tokens;
  const double a = static_cast<double>(first), b = static_cast<double>(last);
  for (int i = 0; i <= kPoints; ++i) {
    const double t = static_cast<double>(i) / kPoints;
    tokens.push_back(std::llround(is_log ? a * std::pow(b / a, t) : a + (b - a) * t));
  }
  for (const KvGrowth::Local& local : growth.locals()) {
    if (local.retention.window > first && local.retention.window < last) {
      tokens.push_back(local.retention.window);
    }
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

Chart make_chart(const PlanReport& report) {
  const KvGrowth& growth = report.main().growth;
  const int64_t last = std::max<int64_t>(report.options.contexts.back(), 64);
  const std::optional<int64_t> crossover = growth.crossover();
  Chart chart;
  chart.title = report.geometry().name + ": KV memory of one conversation";
  chart.subtitle = report.main().format.type_name() + " KV";
  for (const KvGrowth::Local& local : growth.locals()) {
    const bool is_chunked = local.retention.kind == LayerKind::chunked;
    chart.subtitle +=
        fmt::format(", {} layers {} {}", local.n_layers,
                    is_chunked ? "in chunks of" : "with a window of", local.retention.window);
  }
  if (growth.n_global_layers() > 0) {
    chart.subtitle += fmt::format(", {} global", growth.n_global_layers());
  }
  // Straight axes show growth as it is; they need the crossover well inside to be readable.
  const double where =
      crossover ? static_cast<double>(*crossover) / static_cast<double>(last) : 0.5;
  chart.is_log = where < 0.15 ||
                 (growth.locals().size() == 1 && growth.locals()[0].retention.window * 10 < last);
  int64_t first = 1;
  if (chart.is_log) {
    int64_t start = last;
    for (const KvGrowth::Local& local : growth.locals())
      start = std::min(start, local.retention.window);
    first = std::max<int64_t>(1, std::min(start / 4, last / 64));
  }
  chart.tokens = sample(first, last, chart.is_log, growth);

  const std::string at_end = " at " + short_tokens(last);
  ChartSeries uniform{"uniform", "uniform", at_end, {}}, total{"total", "total", at_end, {}};
  ChartSeries global{"global layers", "global", at_end, {}};
  ChartSeries local{"local layers", "local", " and no more", {}};
  for (const int64_t n : chart.tokens) {
    uniform.bytes.push_back(static_cast<double>(growth.uniform(n).v));
    total.bytes.push_back(static_cast<double>(growth.resident(n).v));
    global.bytes.push_back(static_cast<double>(growth.global(n).v));
    local.bytes.push_back(static_cast<double>(growth.local(n).v));
  }
  chart.series.push_back(std::move(uniform));
  chart.series.push_back(std::move(total));
  if (growth.n_global_layers() > 0 && !growth.locals().empty()) {
    chart.series.push_back(std::move(global));
    chart.series.push_back(std::move(local));
  }
  if (crossover) {
    chart.crossover = *crossover;
    chart.crossover_bytes = static_cast<double>(growth.global(*crossover).v);
  }
  return chart;
}

}  // namespace

std::string plan_svg(const PlanReport& report) { return chart_svg(make_chart(report)); }

}  // namespace weir
