// Draws charts of a value over the steps of a run, as SVG text. A chart has a line with the range around it,
// background bands for plan epochs, and marks for decisions. Colors are CSS classes of the enclosing page
// (report/report_page.h). No side effects.
#pragma once

#include <string>
#include <vector>

namespace optimus {

struct ChartPoint {
  double step = 0, value = 0;  // a value that is not finite leaves a gap
};

// A background band from step `first` to step `last`, inclusive.
struct ChartBand {
  double first = 0, last = 0;
  std::string name{};
};

struct ChartMark {
  double step = 0;
  std::string label{}, tooltip{};  // `label` is drawn beside the mark
};

struct Chart {
  std::string title{};
  std::vector<ChartPoint> line{};  // in the order of steps
  std::vector<ChartPoint> dots{};
  std::vector<ChartBand> bands{};
  std::vector<ChartMark> marks{};
  bool begins_at_zero = false;
};

// In long lines, each drawn point is the median of several consecutive steps, with their range around it. A
// chart without points contains a note instead.
std::string svg_of(const Chart& chart);

}  // namespace optimus
