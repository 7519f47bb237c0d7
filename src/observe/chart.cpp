// Implements chart.h.
#include "observe/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "observe/html.h"

namespace optimus {
namespace {

constexpr double kWidth = 976, kHeight = 250;  // half of the last tick label may lie outside the plot
constexpr double kLeft = 64, kRight = 948, kTop = 30, kBottom = 222;
constexpr std::size_t kMaxPoints = 600, kMaxBands = 400, kMaxMarks = 200;
constexpr double kLargest = 1e100;       // differences and scales of such numbers are still finite
constexpr double kCharacterWidth = 6.2;  // average width of a character of the small font

bool is_drawn(const ChartPoint& point) {
  return std::abs(point.value) < kLargest && std::abs(point.step) < kLargest;
}

// Several consecutive steps that are drawn as one point.
struct Column {
  double step = 0, low = 0, middle = 0, high = 0;
};

std::vector<Column> columns_of(const std::vector<ChartPoint>& line) {
  std::vector<Column> columns;
  const std::size_t size = std::max<std::size_t>(1, (line.size() + kMaxPoints - 1) / kMaxPoints);
  for (std::size_t begin = 0; begin < line.size(); begin += size) {
    std::vector<double> values;
    for (std::size_t i = begin; i < std::min(begin + size, line.size()); ++i)
      if (is_drawn(line[i])) values.push_back(line[i].value);
    std::sort(values.begin(), values.end());
    const double gap = NAN;
    const double step = line[std::min(begin + size / 2, line.size() - 1)].step;
    if (values.empty())
      columns.push_back({step, gap, gap, gap});
    else
      columns.push_back({step, values.front(), values[values.size() / 2], values.back()});
  }
  return columns;
}

struct Range {
  double low = 0, high = 1;
  double fraction_of(double value) const { return (value - low) / (high - low); }
};

Range range_of(std::vector<double> values, bool begins_at_zero) {
  std::erase_if(values, [](double value) { return !(std::abs(value) < kLargest); });
  if (values.empty()) return {};
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Range range{begins_at_zero ? std::min(0.0, *low) : *low, *high};
  const double min_length = std::max(1e-12, 1e-6 * std::max(std::abs(range.low), std::abs(range.high)));
  if (range.high - range.low < min_length) range.high = range.low + min_length;
  return range;
}

// Three to seven round numbers inside the range.
std::vector<double> ticks_of(const Range& range) {
  const double raw_step = (range.high - range.low) / 6,
               power = std::pow(10, std::floor(std::log10(raw_step)));
  const double step = power * (raw_step / power > 5   ? 10
                               : raw_step / power > 2 ? 5
                               : raw_step / power > 1 ? 2
                                                      : 1);
  std::vector<double> ticks;
  const double first = std::ceil(range.low / step);
  for (int i = 0; i < 8 && (first + i) * step <= range.high; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

std::string tick_text(double value) {
  return std::abs(value) >= 1000 && std::abs(value) < 1e18 ? short_count(value)
                                                           : fmt::format("{:.4g}", value);
}

class Picture {
 public:
  explicit Picture(const Chart& chart) : chart_(chart), columns_(columns_of(chart.line)) {
    std::vector<double> steps, values;
    for (const Column& column : columns_) {
      steps.push_back(column.step), values.push_back(column.low), values.push_back(column.high);
    }
    if (!chart.line.empty())
      steps.push_back(chart.line.front().step), steps.push_back(chart.line.back().step);
    for (const ChartPoint& dot : chart.dots)
      if (is_drawn(dot)) steps.push_back(dot.step), values.push_back(dot.value);
    steps_ = range_of(steps, false), values_ = range_of(values, chart.begins_at_zero);
  }

  std::string draw() {
    text_ = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth, kHeight,
                        html_escaped(chart_.title));
    draw_bands(), draw_axes(), draw_line(), draw_names(), draw_dots(), draw_marks();
    return text_ + "</svg>\n";
  }

 private:
  double x(double step) const {
    return kLeft + (kRight - kLeft) * std::clamp(steps_.fraction_of(step), 0.0, 1.0);
  }
  double y(double value) const {
    return kBottom - (kBottom - kTop) * std::clamp(values_.fraction_of(value), 0.0, 1.0);
  }

  void draw_bands() {
    for (std::size_t i = 0; i < std::min(kMaxBands, chart_.bands.size()); ++i) {
      const ChartBand& band = chart_.bands[i];
      const double from = x(band.first - 0.5), to = x(band.last + 0.5);
      text_ += fmt::format(
          "<g><title>{}, steps {:.0f} to {:.0f}</title>"
          "<rect class=\"band{}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"/>",
          html_escaped(band.name), band.first, band.last, i % 2, from, kTop, std::max(0.5, to - from),
          kBottom - kTop);
      text_ += "</g>";
    }
  }

  // Draws the names on top of the line, so that they stay readable.
  void draw_names() {
    for (std::size_t i = 0; i < std::min(kMaxBands, chart_.bands.size()); ++i) {
      const ChartBand& band = chart_.bands[i];
      const double from = x(band.first - 0.5), to = x(band.last + 0.5);
      if (static_cast<double>(band.name.size()) * kCharacterWidth < to - from - 8)
        text_ += fmt::format("<text class=\"name\" x=\"{:.1f}\" y=\"{}\">{}</text>", from + 4, kBottom - 5,
                             html_escaped(band.name));
    }
  }

  void draw_axes() {
    for (const double tick : ticks_of(values_))
      text_ += fmt::format(
          "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text class=\"tick end\" x=\"{}\" "
          "y=\"{:.1f}\">{}</text>",
          kLeft, y(tick), kRight, kLeft - 6, y(tick) + 4, tick_text(tick));
    for (const double tick : ticks_of(steps_))
      text_ += fmt::format(
          "<text class=\"tick middle\" x=\"{:.1f}\" y=\"{}\">{}</text>", x(tick), kBottom + 16,
          tick == std::floor(tick) && std::abs(tick) < 1e15 ? with_commas(static_cast<std::int64_t>(tick))
                                                            : tick_text(tick));
    text_ += fmt::format("<path class=\"axis\" d=\"M{} {}H{}\"/>", kLeft, kBottom, kRight);
  }

  void draw_line() {
    std::string path, area;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const Column& column = columns_[i];
      const bool is_gap = std::isnan(column.middle);
      if (!is_gap) {
        const bool follows = i > 0 && !std::isnan(columns_[i - 1].middle);
        path += fmt::format("{}{:.1f} {:.1f}", follows ? 'L' : 'M', x(column.step), y(column.middle));
        // Draws a vertical stroke for the range around each point. Strokes leave no gaps where the line
        // jumps.
        if (column.high > column.low)
          area += fmt::format("M{:.1f} {:.1f}V{:.1f}", x(column.step), y(column.low), y(column.high));
      }
    }
    if (!area.empty()) text_ += fmt::format("<path class=\"range\" d=\"{}\"/>", area);
    if (!path.empty()) text_ += fmt::format("<path class=\"line\" d=\"{}\"/>", path);
    if (path.empty())
      text_ += fmt::format("<text class=\"tick middle\" x=\"{}\" y=\"{}\">nothing yet</text>", kWidth / 2,
                           kHeight / 2);
  }

  void draw_dots() {
    for (std::size_t i = 0; i < std::min(kMaxPoints, chart_.dots.size()); ++i)
      if (const ChartPoint& dot = chart_.dots[i]; is_drawn(dot))
        text_ += fmt::format(
            "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>step {:.0f}: {:.6g}</title>"
            "</circle>",
            x(dot.step), y(dot.value), dot.step, dot.value);
  }

  // Omits overlapping labels but keeps their tooltips.
  void draw_marks() {
    double next_free_x = 0;
    for (std::size_t i = 0; i < std::min(kMaxMarks, chart_.marks.size()); ++i) {
      const ChartMark& mark = chart_.marks[i];
      const double at = x(mark.step);
      text_ += fmt::format(
          "<g class=\"mark\"><title>{}</title><path d=\"M{:.1f} {}V{}\"/><path class=\"head\" d=\"M{:.1f} "
          "{}l-4.5 -7h9z\"/>",
          html_escaped(mark.tooltip), at, kTop, kBottom, at, kTop);
      if (at >= next_free_x)
        text_ += fmt::format("<text class=\"tick middle\" x=\"{:.1f}\" y=\"{}\">{}</text>", at, kTop - 11,
                             html_escaped(mark.label));
      if (at >= next_free_x) next_free_x = at + kCharacterWidth * static_cast<double>(mark.label.size()) + 6;
      text_ += "</g>";
    }
  }

  const Chart& chart_;
  const std::vector<Column> columns_;
  Range steps_, values_;
  std::string text_;
};

}  // namespace

std::string svg_of(const Chart& chart) { return Picture(chart).draw(); }

}  // namespace optimus
