#include "cli/kv_picture.h"

#include <fmt/format.h>

#include "base/check.h"
#include "geometry/growth.h"
#include "plan/kv_plan.h"

namespace weir {
namespace {

constexpr int kBarWidth = 40;

std::string bar(Bytes part, Bytes whole) {
  const double share = whole.v > 0 ? static_cast<double>(part.v) / static_cast<double>(whole.v) : 0;
  int filled = static_cast<int>(share * kBarWidth + 0.5);
  if (part.v > 0 && filled == 0) filled = 1;
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) text += i < filled ? "█" : "·";
  return text;
}

std::string describe(const KvLayout& layout, bool local) {
  size_t layers = 0;
  int64_t window = 0;
  for (const KvGroup& group : layout.groups) {
    if (layout.is_local(group) != local) continue;
    layers += group.layers.size();
    window = std::max(window, group.retention.window);
  }
  if (!local) return fmt::format("{} layers, every token", layers);
  return fmt::format("{} layers, last {}", layers, window);
}

}  // namespace

KvForecast forecast_kv(const KvGeometry& geometry, const KvFormat& format, int64_t tokens) {
  const Result<KvPlanner> planner = KvPlanner::create(geometry, format);
  const Result<KvGrowth> growth = KvGrowth::of(geometry, format);
  WEIR_CHECK(planner.ok() && growth.ok());  // the engine runs with this format
  return {planner->plan({.tokens = tokens, .n_sequences = 1, .ubatch = 1}).resident(),
          growth->uniform(tokens)};
}

std::string draw_kv(const KvGeometry& geometry, const KvLayout& layout, const KvUsage& own,
                    Bytes all, int64_t tokens, Bytes budget) {
  const KvForecast forecast = forecast_kv(geometry, layout.format, tokens);
  const Bytes held = own.resident();
  const Bytes whole = std::max(forecast.uniform, held);
  std::string text = fmt::format("KV memory after {} tokens\n", tokens);
  text += fmt::format("  global   {} {:>10}  {}\n", bar(own.global, whole),
                      format_bytes(own.global), describe(layout, false));
  text += fmt::format("  local    {} {:>10}  {}\n", bar(own.local, whole), format_bytes(own.local),
                      describe(layout, true));
  text += fmt::format("  in all   {} {:>10}  planned {}\n", bar(held, whole), format_bytes(held),
                      format_bytes(forecast.planned));
  text += fmt::format("  uniform  {} {:>10}  every layer with every token\n",
                      bar(forecast.uniform, whole), format_bytes(forecast.uniform));
  if (all > held) {
    text += fmt::format("  besides this, earlier turns and other branches keep {}\n",
                        format_bytes(all - held));
  }
  text += fmt::format("  {} of the budget of {} in use\n", format_bytes(all), format_bytes(budget));
  return text;
}

}  // namespace weir
