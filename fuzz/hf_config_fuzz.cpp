// Any bytes as a config.json: the geometry and its plan must end in a value or one line.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "geometry/hf_config.h"
#include "plan/plan_report.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weir;
  Result<KvGeometry> geometry =
      geometry_from_hf_config({reinterpret_cast<const char*>(data), size});
  if (!geometry) {
    const std::string& message = geometry.error().message();
    WEIR_CHECK(!message.empty() && message.size() < 2000);
    WEIR_CHECK(message.find('\n') == std::string::npos);
    return 0;
  }
  ModelSource source;
  source.label = geometry->name;
  source.geometry = std::move(*geometry);
  const Result<PlanReport> report = make_plan_report(std::move(source), PlanOptions());
  WEIR_CHECK(report.ok());
  WEIR_CHECK(!plan_text(*report).empty() && !plan_json(*report).empty());
  WEIR_CHECK(!plan_html(*report).empty());
  return 0;
}
