#include "plan/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "plan/plan_report.h"

namespace weir {
namespace {

constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 84, kRight = 782, kTop = 96, kBottom = 478;

constexpr const char* kStyle = R"(<style>
  svg { color-scheme: light dark; }
  .panel { fill: #ffffff; stroke: #d8dee4; }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2328; }
  .title { font-size: 22px; font-weight: 650; }
  .subtitle, .axis { font-size: 14px; fill: #59636e; }
  .tick { font-size: 13px; fill: #59636e; }
  .grid { stroke: #e6eaef; stroke-width: 1; }
  .curve { fill: none; stroke-linejoin: round; stroke-linecap: round; }
  .curve.uniform { stroke: #8c959f; stroke-width: 2; stroke-dasharray: 2 6; }
  .curve.total { stroke: #0b3d91; stroke-width: 4; }
  .curve.global { stroke: #c2410c; stroke-width: 2.5; stroke-dasharray: 9 5; }
  .curve.local { stroke: #0f8a6d; stroke-width: 2.5; }
  .saved { fill: #0b3d91; fill-opacity: 0.07; }
  .saving { font-size: 19px; font-weight: 650; fill: #0b3d91; }
  .label { font-size: 14px; font-weight: 600; }
  .label.uniform { fill: #6b7580; } .label.total { fill: #0b3d91; }
  .label.global { fill: #c2410c; } .label.local { fill: #0f8a6d; }
  .value { font-size: 13px; fill: #59636e; }
  .mark { stroke: #59636e; stroke-width: 1; stroke-dasharray: 3 4; }
  .dot { fill: #ffffff; stroke: #1f2328; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #0d1117; stroke: #30363d; }
    text { fill: #f0f3f6; }
    .subtitle, .axis, .tick, .value { fill: #9aa4ae; }
    .grid { stroke: #21272e; }
    .curve.uniform { stroke: #7d8792; } .curve.total { stroke: #6cb0ff; }
    .curve.global { stroke: #ff9d66; } .curve.local { stroke: #4fd6b4; }
    .saved { fill: #6cb0ff; fill-opacity: 0.09; } .saving { fill: #6cb0ff; }
    .label.uniform { fill: #9aa4ae; } .label.total { fill: #6cb0ff; }
    .label.global { fill: #ff9d66; } .label.local { fill: #4fd6b4; }
    .mark { stroke: #9aa4ae; } .dot { fill: #0d1117; stroke: #f0f3f6; }
  }
</style>
)";

// One axis: values to pixels, linear or logarithmic.
struct Axis {
  double low, high, from, to;
  bool is_log;
  double at(double value) const {
    const double v = std::clamp(value, low, high);
    const double share =
        is_log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return from + share * (to - from);
  }
};

// Powers of a power of two, or equal steps of one: at most `most` ticks.
std::vector<double> ticks(const Axis& axis, int most) {
  std::vector<double> out;
  if (axis.is_log) {
    const double first = std::ceil(std::log2(axis.low) - 1e-9), last = std::log2(axis.high) + 1e-9;
    double step = 1;
    while ((last - first) / step > most - 1) ++step;
    if (step > 2 && step < 4) step = 4;
    // Counted from the upper end, where the reader looks.
    for (double p = std::floor(last); p >= first; p -= step) out.push_back(std::exp2(p));
    return out;
  }
  double step = 1;
  while ((axis.high - axis.low) / step > most) step *= 2;
  for (double v = step; v <= axis.high * (1 + 1e-9); v += step) out.push_back(v);
  return out;
}

std::string bytes_text(double bytes) { return format_bytes({static_cast<int64_t>(bytes)}); }

// Curve as SVG path data. Bytes of 0 lie on the axis.
std::string path(const Chart& chart, const ChartSeries& series, const Axis& x, const Axis& y) {
  std::string d;
  for (size_t i = 0; i < chart.tokens.size(); ++i) {
    d += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L",
                     x.at(static_cast<double>(chart.tokens[i])), y.at(series.bytes[i]));
  }
  return d;
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out;
  for (const double v : ticks(x, 10)) {
    const double px = x.at(v);
    out +=
        fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>\n",
                    px, kTop, kBottom);
    out +=
        fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    px, kBottom + 22, short_tokens(static_cast<int64_t>(v)));
  }
  for (const double v : ticks(y, 9)) {
    const double py = y.at(v);
    out +=
        fmt::format("<line class=\"grid\" x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\"/>\n",
                    py, kLeft, kRight);
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                       kLeft - 10, py + 4.5, bytes_text(v));
  }
  out += fmt::format(
      "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">context, tokens{}</text>\n",
      (kLeft + kRight) / 2, kBottom + 46, x.is_log ? " (logarithmic)" : "");
  return out;
}

// Names and last values at the right ends of the curves, pushed apart where they would overlap.
std::string end_labels(const Chart& chart, const Axis& y) {
  constexpr double kApart = 40;
  std::vector<std::pair<double, const ChartSeries*>> ends;
  for (const ChartSeries& s : chart.series) ends.emplace_back(y.at(s.bytes.back()), &s);
  std::stable_sort(ends.begin(), ends.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 1; i < ends.size(); ++i)
    ends[i].first = std::max(ends[i].first, ends[i - 1].first + kApart);
  for (size_t i = ends.size(); i-- > 0;) {
    const double limit = i + 1 == ends.size() ? kBottom - 8 : ends[i + 1].first - kApart;
    ends[i].first = std::min(ends[i].first, limit);
  }
  std::string out;
  for (const auto& [at, s] : ends) {
    out += fmt::format("<text class=\"label {}\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", s->css_class,
                       kRight + 14, at, xml_escape(s->name));
    out += fmt::format("<text class=\"value\" x=\"{}\" y=\"{:.1f}\">{}{}</text>\n", kRight + 14,
                       at + 17, bytes_text(s->bytes.back()), xml_escape(s->note));
  }
  return out;
}

std::string crossover_mark(const Chart& chart, const Axis& x, const Axis& y) {
  const double token = static_cast<double>(chart.crossover);
  if (chart.crossover <= chart.tokens.front() || chart.crossover >= chart.tokens.back()) return "";
  const double px = x.at(token), py = y.at(chart.crossover_bytes);
  std::string out = fmt::format(
      "<line class=\"mark\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2}\"/>\n", px, py,
      kBottom);
  out += fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n", px, py);
  const bool to_left = px > kRight - 190;
  const char* anchor = to_left ? "end" : "start";
  const double tx = px + (to_left ? -12 : 12);
  const double ty = std::min(py + 38, kBottom - 34);
  out += fmt::format(
      "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{} tokens</text>\n", tx,
      ty, anchor, chart.crossover);
  out += fmt::format(
      "<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">global = local "
      "windows</text>\n",
      tx, ty + 18, anchor);
  return out;
}

const ChartSeries* find_series(const Chart& chart, const std::string& css_class) {
  for (const ChartSeries& s : chart.series) {
    if (s.css_class == css_class) return &s;
  }
  return nullptr;
}

// The area between total and uniform, and what it says: how much windows save.
std::string saved_area(const Chart& chart, const Axis& x, const Axis& y) {
  const ChartSeries* total = find_series(chart, "total");
  const ChartSeries* uniform = find_series(chart, "uniform");
  if (!total || !uniform) return "";
  const double ratio = total->bytes.back() / uniform->bytes.back();
  if (ratio > 0.99) return "";
  std::string d = path(chart, *uniform, x, y);
  for (size_t i = chart.tokens.size(); i-- > 0;) {
    d += fmt::format("L{:.1f} {:.1f}", x.at(static_cast<double>(chart.tokens[i])),
                     y.at(total->bytes[i]));
  }
  std::string out = "<path class=\"saved\" d=\"" + d + "Z\"/>\n";
  const size_t i = chart.tokens.size() * 8 / 9;
  const double top = y.at(uniform->bytes[i]), bottom = y.at(total->bytes[i]);
  if (bottom - top < 60) return out;
  out += fmt::format(
      "<text class=\"saving\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">−{:.0f} %</text>\n",
      x.at(static_cast<double>(chart.tokens[i])), (top + bottom) / 2 + 7, 100 * (1 - ratio));
  return out;
}

}  // namespace

std::string xml_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string chart_svg(const Chart& chart) {
  double least = 0, most = 1;
  for (const ChartSeries& s : chart.series) {
    most = std::max(most, *std::max_element(s.bytes.begin(), s.bytes.end()));
    for (const double b : s.bytes) {
      if (b > 0 && (least == 0 || b < least)) least = b;
    }
  }
  const double first = static_cast<double>(chart.tokens.front());
  const double last = std::max(static_cast<double>(chart.tokens.back()), first * 2);
  const Axis x{chart.is_log ? first : 0, last, kLeft, kRight, chart.is_log};
  const double low = chart.is_log ? std::min(least, most / 4) * 0.8 : 0;
  const Axis y{low, most * (chart.is_log ? 1.25 : 1.05), kBottom, kTop, chart.is_log};

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n",
      kWidth, kHeight, xml_escape(chart.title));
  svg += kStyle;
  svg += fmt::format(
      "<rect class=\"panel\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"12\"/>\n",
      kWidth - 1, kHeight - 1);
  svg +=
      fmt::format("<text class=\"title\" x=\"28\" y=\"42\">{}</text>\n", xml_escape(chart.title));
  svg += fmt::format("<text class=\"subtitle\" x=\"28\" y=\"66\">{}</text>\n",
                     xml_escape(chart.subtitle));
  svg += grid(x, y) + saved_area(chart, x, y);
  for (const ChartSeries& s : chart.series) {
    svg += fmt::format("<path class=\"curve {}\" d=\"{}\"/>\n", s.css_class, path(chart, s, x, y));
  }
  return svg + crossover_mark(chart, x, y) + end_labels(chart, y) + "</svg>\n";
}

}  // namespace weir
