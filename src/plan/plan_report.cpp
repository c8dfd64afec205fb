#include "plan/plan_report.h"

#include <algorithm>

#include "geometry/geometry_draft.h"
#include "geometry/window.h"

namespace weir {
namespace {

Status out_of_range(const char* what, int64_t value, int64_t most) {
  return Status(Code::invalid_input, std::string(what) + " is " + std::to_string(value) +
                                         "; it must be 1 to " + std::to_string(most));
}

Status check(const PlanOptions& options) {
  for (const int64_t n : options.contexts) {
    if (n < 1 || n > kMaxTokens) return out_of_range("a context", n, kMaxTokens);
  }
  if (options.ubatch < 1 || options.ubatch > kMaxTokens) {
    return out_of_range("the micro-batch", options.ubatch, kMaxTokens);
  }
  if (options.parallel < 1 || options.parallel > kMaxSequences) {
    return out_of_range("--parallel", options.parallel, kMaxSequences);
  }
  return {};
}

// Doubling lengths up to the model's largest context, that one included.
std::vector<int64_t> usual_contexts(int64_t max_context) {
  const int64_t last = max_context > 0 ? max_context : 131072;
  int64_t n = 4096;
  while (n > 64 && n * 4 > last) n /= 2;
  std::vector<int64_t> contexts;
  for (; n < last; n *= 2) contexts.push_back(n);
  contexts.push_back(last);
  return contexts;
}

// Of one conversation: the global rows, and of each local layer those from the window's start on.
Bytes readable_rows(const KvGrowth& growth, int64_t n) {
  Bytes sum = growth.global(n);
  for (const KvGrowth::Local& local : growth.locals()) {
    sum += (n - first_visible(local.retention, n)) * local.per_token;
  }
  return sum;
}

std::optional<PlanSharing> sharing_of(const KvGeometry& geometry, const KvFormat& format) {
  PlanSharing sharing;
  for (const KvLayer& layer : geometry.layers) {
    const int stored = k_stored_elements(layer, format);
    if (!layer.owns_kv() || stored == layer.k_dim) continue;
    const KvType type = format.k_of(layer.retention.kind);  // of both
    const int64_t v = kv_row_bytes(type, layer.v_dim);
    ++sharing.n_layers;
    sharing.n_kv_heads = layer.n_kv_heads;
    sharing.k_dim = layer.k_dim;
    sharing.v_dim = layer.v_dim;
    sharing.k_stored = stored;
    sharing.per_token += layer.n_kv_heads * Bytes{kv_row_bytes(type, stored) + v};
    sharing.separate_per_token += layer.n_kv_heads * Bytes{kv_row_bytes(type, layer.k_dim) + v};
  }
  if (sharing.n_layers == 0) return std::nullopt;
  return sharing;
}

PlanCapacity capacity_of(const KvPlanner& planner, const PlanOptions& options,
                         const std::vector<int64_t>& contexts) {
  const PlanLoad load{.tokens = 0, .n_sequences = options.parallel, .ubatch = options.ubatch};
  PlanCapacity capacity{.budget = *options.budget, .counts = {}};
  capacity.most_tokens = planner.most_tokens(*options.budget, load);
  capacity.is_unlimited = capacity.most_tokens == kMaxTokens;
  for (const int64_t n : contexts) {
    PlanLoad one = load;
    one.tokens = n;
    capacity.counts.push_back({n, planner.most_sequences(*options.budget, one)});
  }
  return capacity;
}

}  // namespace

double PlanRow::ratio() const {
  return static_cast<double>(plan.resident().v) /
         static_cast<double>(std::max<int64_t>(1, uniform.v));
}
double PlanRow::exact_ratio() const {
  return static_cast<double>(exact().v) / static_cast<double>(std::max<int64_t>(1, uniform.v));
}

Result<PlanReport> make_plan_report(ModelSource source, PlanOptions options) {
  if (Status s = check(options); !s.ok()) return s;
  if (options.contexts.empty()) options.contexts = usual_contexts(source.geometry.max_context);
  std::sort(options.contexts.begin(), options.contexts.end());
  options.contexts.erase(std::unique(options.contexts.begin(), options.contexts.end()),
                         options.contexts.end());

  PlanReport report;
  report.block_tokens = choose_block_tokens(source.geometry);
  for (KvFormat format : options.formats) {
    format.block_tokens = report.block_tokens;
    Result<KvPlanner> planner = KvPlanner::create(source.geometry, format);
    if (!planner) return planner.error();
    TypeReport one{.format = format,
                   .sharing = sharing_of(source.geometry, format),
                   .growth = *KvGrowth::of(source.geometry, format),
                   .rows = {},
                   .capacity = {}};
    for (const int64_t n : options.contexts) {
      const int64_t s = options.parallel;
      const RewindPlan rewind = plan_rewind(planner->layout(), n, options.rewind_bound);
      // An idle conversation keeps its global blocks, and of the local ones its restart points'.
      const KvPlan alone = planner->plan({.tokens = n, .n_sequences = 1, .ubatch = 1});
      one.rows.push_back(
          {.context = n,
           .plan = planner->plan({.tokens = n, .n_sequences = s, .ubatch = options.ubatch}),
           .global = s * one.growth.global(n),
           .local = s * one.growth.local(n),
           .uniform = s * one.growth.uniform(n),
           .readable = s * readable_rows(one.growth, n),
           .rewind = rewind,
           .restart_points = (s + options.idle) * rewind.bytes,
           .idle = options.idle * alone.resident()});
    }
    if (options.budget) one.capacity = capacity_of(*planner, options, options.contexts);
    report.types.push_back(std::move(one));
  }
  report.source = std::move(source);
  report.options = std::move(options);
  return report;
}

std::string short_tokens(int64_t tokens) {
  if (tokens < 1024 || tokens % 1024 != 0) return std::to_string(tokens);
  const int64_t k = tokens / 1024;
  if (k < 1024) return std::to_string(k) + "k";
  if (k % 1024 == 0) return std::to_string(k / 1024) + "M";
  if (k % 512 == 0) return std::to_string(k / 1024) + ".5M";
  return std::to_string(k) + "k";
}

}  // namespace weir
