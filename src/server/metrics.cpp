#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>
#include <vector>

namespace weir {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Values with the label that tells them apart.
using Labelled = std::vector<std::pair<std::string, double>>;

double number(Bytes bytes) { return static_cast<double>(bytes.v); }
double number(uint64_t count) { return static_cast<double>(count); }
double number(int64_t count) { return static_cast<double>(count); }

class Families {
 public:
  void gauge(const char* name, const char* help, double value) {
    add(name, help, MetricType::Gauge, "", {{"", value}});
  }
  void gauges(const char* name, const char* help, const char* label, const Labelled& values) {
    add(name, help, MetricType::Gauge, label, values);
  }
  void counter(const char* name, const char* help, uint64_t value) {
    add(name, help, MetricType::Counter, "", {{"", number(value)}});
  }
  void counters(const char* name, const char* help, const char* label, const Labelled& values) {
    add(name, help, MetricType::Counter, label, values);
  }
  void histogram(const char* name, const char* help, const StepTimes& times) {
    ClientMetric metric;
    uint64_t sum = 0;
    for (size_t i = 0; i < times.counts.size(); ++i) {
      sum += times.counts[i];
      const double bound = i < StepTimes::kUpperSeconds.size()
                               ? StepTimes::kUpperSeconds[i]
                               : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({sum, bound});
    }
    metric.histogram.sample_count = sum;
    metric.histogram.sample_sum = times.total_seconds;
    families_.push_back({name, help, MetricType::Histogram, {std::move(metric)}});
  }
  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void add(const char* name, const char* help, MetricType type, const char* label,
           const Labelled& values) {
    MetricFamily family{name, help, type, {}};
    for (const auto& [text, value] : values) {
      ClientMetric metric;
      if (*label != '\0') metric.label.push_back({label, text});
      metric.gauge.value = metric.counter.value = value;
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  std::vector<MetricFamily> families_;
};

void add_kv(Families& out, const EngineStats& stats) {
  out.gauge("weir_kv_limit_bytes", "The KV budget.", number(stats.kv_limit));
  out.gauge("weir_kv_used_bytes", "KV memory reserved for any purpose.", number(stats.kv_used));
  out.gauge("weir_kv_peak_bytes", "Most that was ever reserved.", number(stats.kv_peak));
  Labelled tags;
  for (int i = 0; i < kTagCount; ++i) {
    tags.emplace_back(tag_name(static_cast<Tag>(i)),
                      number(stats.kv_by_tag[static_cast<size_t>(i)]));
  }
  out.gauges("weir_kv_bytes", "KV memory by purpose.", "tag", tags);
  out.gauges(
      "weir_kv_layer_bytes", "KV blocks held for any purpose by kind of layer.", "kind",
      {{"global", number(stats.kv.held_global())}, {"local", number(stats.kv.held_local())}});
  out.gauge("weir_compute_bytes", "Graph and attention buffers, outside the KV budget.",
            number(stats.compute_bytes));
  out.gauge("weir_conversations", "Conversations kept by name.", number(stats.conversations));
  out.counter("weir_evictions_total", "Evictions of idle KV for want of room.", stats.evictions);
  out.counter("weir_evicted_bytes_total", "KV bytes that evictions freed.", stats.evicted_bytes);
}

void add_requests(Families& out, const EngineStats& stats, const GateStats& gate) {
  Labelled outcomes;
  for (int i = 0; i < kFinishReasonCount; ++i) {
    outcomes.emplace_back(finish_reason_name(static_cast<FinishReason>(i)),
                          number(stats.requests_by_outcome[static_cast<size_t>(i)]));
  }
  out.counters("weir_requests_total", "Requests that ended, by how.", "outcome", outcomes);
  out.counters("weir_requests_refused_total", "Requests that were not let in, by why.", "reason",
               {{"queue_full", number(gate.refused_full)},
                {"invalid", number(gate.refused_invalid)},
                {"stopping", number(gate.refused_stopping)}});
  out.gauge("weir_requests_waiting", "Requests in the queue.", number(gate.waiting));
  out.gauge("weir_requests_running", "Requests that are being computed.", number(gate.running));
  out.counter("weir_preemptions_total", "Requests sent back to the queue for want of KV.",
              stats.preemptions);
}

void add_tokens(Families& out, const EngineStats& stats) {
  out.counter("weir_prompt_tokens_total", "Tokens of all prompts.", stats.prompt_tokens);
  out.counter("weir_cached_tokens_total", "Prompt tokens that were in the KV.",
              stats.cached_tokens);
  out.counter("weir_generated_tokens_total", "Tokens of all replies.", stats.generated_tokens);
  out.counter("weir_computed_tokens_total", "Tokens that steps put into the KV.",
              stats.computed_tokens);
  out.counter("weir_recomputed_tokens_total",
              "Of these, again, because their request had to give way.", stats.recomputed_tokens);
  out.counters(
      "weir_prompts_total", "Prompts by whether something of them was in the KV.", "kv",
      {{"hit", number(stats.requests_with_hit)}, {"miss", number(stats.requests_with_miss)}});
  Labelled lost;
  for (int i = 0; i < kMissReasonCount; ++i) {
    const auto reason = static_cast<MissReason>(i);
    if (reason == MissReason::none) continue;
    lost.emplace_back(miss_reason_name(reason), number(stats.lost_tokens[static_cast<size_t>(i)]));
  }
  out.counters("weir_lost_tokens_total",
               "Prompt tokens that had been in the KV and had to be read again, by why.", "reason",
               lost);
  out.counter("weir_healed_tokens_total", "Tokens read again to rebuild windows before a restart.",
              stats.healed_tokens);
  out.gauge("weir_worst_token_gap_seconds", "Longest time between two tokens of one reply.",
            stats.worst_gap_seconds);
  out.gauge("weir_tokens_per_second", "Generated by all replies, over about ten seconds.",
            stats.tokens_per_second);
}

// Nothing where there is no tier.
void add_tier(Families& out, const EngineStats& stats) {
  if (!stats.has_tier) return;
  const TierCounters& traffic = stats.tier_traffic;
  out.gauge("weir_tier_used_bytes", "Records that the tier holds.", number(stats.tier.used));
  out.gauge("weir_tier_capacity_bytes", "Most that it may hold.", number(stats.tier.capacity));
  out.gauge("weir_tier_records", "Blocks that it holds.", number(stats.tier.records));
  out.counters("weir_tier_bytes_total", "Bytes of records written to the tier and read from it.",
               "direction", {{"in", number(traffic.written)}, {"out", number(traffic.read)}});
  out.counters("weir_tier_records_total", "Records written to the tier and read from it.",
               "direction",
               {{"in", number(traffic.written_records)}, {"out", number(traffic.read_records)}});
  out.counter("weir_tier_lookups_total", "Prompts that the tier was asked about.", traffic.loads);
  out.counter("weir_tier_hits_total", "Of these, those for which something came.", traffic.hits);
  out.counter("weir_tier_hit_tokens_total", "Tokens that were not computed for that.",
              traffic.hit_tokens);
  Labelled misses;
  for (int i = 0; i < kTierMissCount; ++i) {
    misses.emplace_back(tier_miss_name(static_cast<TierMiss>(i)),
                        number(traffic.misses[static_cast<size_t>(i)]));
  }
  out.counters("weir_tier_misses_total",
               "Lookups for which nothing came, or less than the tier had, by why.", "reason",
               misses);
  out.counter("weir_tier_failed_writes_total", "Records that could not be written.",
              traffic.failed_writes);
  out.counter("weir_tier_evicted_unwritten_total",
              "Blocks that were evicted before they could be written.", traffic.evicted_unwritten);
}

}  // namespace

std::string metrics_text(const EngineStats& engine, const GateStats& gate, const HttpStats& http) {
  Families out;
  add_kv(out, engine);
  add_requests(out, engine, gate);
  add_tokens(out, engine);
  add_tier(out, engine);
  out.histogram("weir_step_seconds", "Time of the engine's steps.", engine.step_times);
  out.counter("weir_failed_steps_total", "Steps that could not be computed.", engine.failed_steps);
  out.gauge("weir_stalled_seconds", "Time with work but without a finished step.",
            engine.stalled_seconds);
  out.gauge("weir_http_connections", "Open connections.",
            number(static_cast<uint64_t>(http.connections)));
  out.counter("weir_http_requests_total", "Requests with a complete head.", http.requests);
  out.counter("weir_http_refused_connections_total", "Connections beyond the limit.", http.refused);
  out.counter("weir_http_closed_for_room_total",
              "Connections closed between two requests, because others came.",
              http.closed_for_room);
  out.counter("weir_http_clients_gone_total", "Clients that left before their answer was complete.",
              http.gone);
  return out.text();
}

}  // namespace weir
