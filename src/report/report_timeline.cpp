// Draws the timeline of one step for report_page.h. There is one row per rank, with computation above
// communication.
#include <algorithm>
#include <cmath>

#include "observe/html.h"
#include "report/report_page.h"

namespace optimus {
namespace {

constexpr double kPictureWidth = 960, kLeftEdge = 64, kRightEdge = 948, kRowHeight = 30, kHeaderHeight = 8;
constexpr std::size_t kMaxBars = 20'000;  // limits the page to a few megabytes

struct StepSpan {
  double start = 0, end = 0;
};

// The first profiled step, from the first rank's start to the last rank's end.
StepSpan first_step(const std::vector<RankProfile>& ranks) {
  StepSpan span{HUGE_VAL, -HUGE_VAL};
  for (const RankProfile& rank : ranks)
    if (!rank.steps.empty())
      span = {std::min(span.start, rank.steps.front().start), std::max(span.end, rank.steps.front().end)};
  return span;
}

const char* class_of(const TracedInstruction& instruction) {
  if (instruction.lane != Lane::compute && instruction.lane != Lane::host) return "talk";
  if (instruction.kind.starts_with("forward")) return "forward";
  return instruction.kind.starts_with("backward") ? "backward" : "other";
}

}  // namespace

std::string timeline_svg(const std::vector<RankProfile>& ranks) {
  const StepSpan span = first_step(ranks);
  if (!(span.end > span.start) || !(span.end - span.start < 1e15))
    return "<p>no complete step was profiled</p>\n";
  const double height = kHeaderHeight + kRowHeight * static_cast<double>(ranks.size()) + 22;
  const auto x = [&](double time) {
    return kLeftEdge +
           (kRightEdge - kLeftEdge) * std::clamp((time - span.start) / (span.end - span.start), 0.0, 1.0);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"timeline of one step\">", kPictureWidth, height);
  std::size_t remaining = kMaxBars;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double top = kHeaderHeight + kRowHeight * static_cast<double>(r);
    svg += fmt::format("<text class=\"end\" x=\"{}\" y=\"{}\">rank {}</text>", kLeftEdge - 6, top + 16,
                       ranks[r].rank);
    for (const TracedInstruction& instruction : ranks[r].instructions) {
      if (!(instruction.end > span.start) || !(instruction.start < span.end) || remaining == 0) continue;
      --remaining;
      const std::string kind = class_of(instruction);
      const bool is_communication = kind == "talk";
      svg += fmt::format(
          "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{}: "
          "{}</title></rect>",
          kind, x(instruction.start), is_communication ? top + 17 : top,
          std::max(0.4, x(instruction.end) - x(instruction.start)), is_communication ? 7 : 16,
          html_escaped(instruction.name), text(Seconds(instruction.end - instruction.start)));
    }
  }
  return svg + fmt::format(
                   "<path class=\"axis\" d=\"M{} {}H{}\"/><text x=\"{}\" y=\"{}\">0</text>"
                   "<text class=\"end\" x=\"{}\" y=\"{}\">{}</text></svg>\n",
                   kLeftEdge, height - 18, kRightEdge, kLeftEdge, height - 5, kRightEdge, height - 5,
                   text(Seconds(span.end - span.start)));
}

}  // namespace optimus
