// A picture of a figure over a run's steps, as SVG text: a line with the range around it, plan epochs as bands behind, decisions as
// marks. Colours are CSS classes of the page that it stands in (report/report_page.h). Pure.
#pragma once

#include <string>
#include <vector>

namespace optimus {

struct ChartPoint {
  double step = 0, value = 0;  // not finite: a gap
};

// Steps from `first` to `last`, both of it.
struct ChartBand {
  double first = 0, last = 0;
  std::string name{};
};

struct ChartMark {
  double step = 0;
  std::string label{}, tip{};  // beside it; when one points at it
};

struct Chart {
  std::string title{};
  std::vector<ChartPoint> line{};  // in the order of steps
  std::vector<ChartPoint> dots{};
  std::vector<ChartBand> bands{};
  std::vector<ChartMark> marks{};
  bool begins_at_zero = false;
};

// Of long lines each point of the picture shows the median and the range of some steps that lie side by side. Nothing to draw: a word
// that says so.
std::string svg_of(const Chart& chart);

}  // namespace optimus
