#include "server/metrics.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Metrics, TellOfATierWhereThereIsOne) {
  EngineStats stats;
  EXPECT_EQ(metrics_text(stats, {}, {}).find("weir_tier"), std::string::npos);
  stats.has_tier = true;
  stats.tier.records = 7;
  stats.tier_traffic.hits = 3;
  stats.tier_traffic.written = {4096};
  stats.tier_traffic.misses[static_cast<size_t>(TierMiss::corrupt)] = 2;
  const std::string text = metrics_text(stats, {}, {});
  for (const std::string line : {"weir_tier_records 7", "weir_tier_hits_total 3",
                                 "weir_tier_bytes_total{direction=\"in\"} 4096",
                                 "weir_tier_bytes_total{direction=\"out\"} 0",
                                 "weir_tier_misses_total{reason=\"corrupt\"} 2",
                                 "weir_tier_misses_total{reason=\"not_held\"} 0"}) {
    EXPECT_NE(text.find("\n" + line), std::string::npos) << line << " in\n" << text;
  }
}

}  // namespace
}  // namespace weir
