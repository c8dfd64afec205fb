#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// A quantity over the context length.
struct ChartSeries {
  std::string name;
  std::string css_class;      // uniform, total, global or local: decides colour and stroke
  std::string note;           // follows the last value at the curve's end
  std::vector<double> bytes;  // one value for each x of the chart
};

struct Chart {
  std::string title, subtitle;
  std::vector<int64_t> tokens;  // ascending, the first > 0
  std::vector<ChartSeries> series;
  int64_t crossover = 0;  // marked if inside; 0: none
  double crossover_bytes = 0;
  bool is_log = true;  // both axes
};

// A drawing that needs nothing outside itself and follows the viewer's light or dark mode.
std::string chart_svg(const Chart& chart);

// `text` with the characters that mean something in XML replaced.
std::string xml_escape(const std::string& text);

}  // namespace weir
