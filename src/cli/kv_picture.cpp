#include "cli/kv_picture.h"

#include <fmt/format.h>

#include "geometry/window.h"

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

KvForecast forecast_kv(const KvGeometry& geometry, const KvLayout& layout, int64_t tokens) {
  KvForecast forecast;
  for (const KvGroup& group : layout.groups) {
    const Bytes held = held_blocks(group.retention, tokens, group.block_tokens) * group.block_bytes;
    (layout.is_local(group) ? forecast.local : forecast.global) += held;
  }
  for (const KvLayer& layer : geometry.layers) {
    if (!layer.owns_kv()) continue;
    const KvGroup& group = layout.groups[static_cast<size_t>(layout.group_of[layer.index])];
    forecast.uniform.v += tokens * layer.n_kv_heads *
                          (kv_row_bytes(group.k_type, layer.k_dim) +
                           kv_row_bytes(group.v_type, layer.v_dim));
  }
  return forecast;
}

std::string draw_kv(const KvGeometry& geometry, const KvLayout& layout, const KvUsage& usage,
                    int64_t tokens, Bytes budget) {
  const KvForecast plan = forecast_kv(geometry, layout, tokens);
  const Bytes whole = std::max(plan.uniform, usage.resident());
  const Bytes held = usage.global + usage.local;
  std::string text = fmt::format("KV memory after {} tokens\n", tokens);
  text += fmt::format("  global   {} {:>10}  {}\n", bar(usage.global, whole),
                      format_bytes(usage.global), describe(layout, false));
  text += fmt::format("  local    {} {:>10}  {}\n", bar(usage.local, whole),
                      format_bytes(usage.local), describe(layout, true));
  text += fmt::format("  in all   {} {:>10}  planned {}\n", bar(held, whole), format_bytes(held),
                      format_bytes(plan.total()));
  text += fmt::format("  uniform  {} {:>10}  every layer with every token\n",
                      bar(plan.uniform, whole), format_bytes(plan.uniform));
  text += fmt::format("  budget   {} {:>10}  {:.1f} % used\n", bar(held, budget),
                      format_bytes(budget),
                      100.0 * static_cast<double>(held.v) / static_cast<double>(budget.v));
  return text;
}

}  // namespace weir
