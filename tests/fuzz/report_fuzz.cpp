// Both lists of a run's folder, cut at the first zero byte, as pictures: whatever they say, it is no markup.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "observe/chart.h"
#include "observe/decisions.h"
#include "observe/metrics_read.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  const std::string all(reinterpret_cast<const char*>(data), size);
  const std::size_t middle = std::min(all.find('\0'), all.size());
  Chart chart{.title = "loss"};
  try {
    for (const StepMetrics& step : parse_metrics(all.substr(0, middle), "metrics"))
      chart.line.push_back({static_cast<double>(step.step), step.loss});
    for (const Decision& one : parse_decisions(all.substr(std::min(middle + 1, all.size())), "decisions")) {
      chart.marks.push_back({static_cast<double>(one.step), one.kind, text(one, one.from, one.to)});
      chart.bands.push_back({static_cast<double>(one.step), static_cast<double>(one.step), one.evidence});
    }
  } catch (const UserError&) {
    return 0;
  }
  // Every mark of markup is one of ours.
  const std::string svg = svg_of(chart);
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find_first_of(" >/", at + 2);
    const std::string name = svg.substr(at, end - at);
    if (name != "<svg" && name != "</svg" && name != "<g" && name != "</g" && name != "<title" &&
        name != "</title" && name != "<rect" && name != "<text" && name != "</text" && name != "<path" &&
        name != "<circle" && name != "</circle")
      std::abort();
  }
  return 0;
}
