// The report of a run as an HTML page: the loss, speed and plans over time, the decisions with their reasons,
// and the timeline of a step if a step was profiled. The page has no external scripts, fonts or images. Pure,
// except that read_report() reads the run's folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "observe/decisions.h"
#include "observe/metrics.h"
#include "report/profile_report.h"
#include "rundir/run_records.h"

namespace optimus {

struct RunReport {
  std::string name;  // the run's folder
  std::vector<StepMetrics> steps{};
  std::vector<Decision> decisions{};
  RunPlans plans{};
  std::vector<RankProfile> ranks{};  // of the last profile; if empty, the page has no timeline
};

// Throws ReportedError if the folder is not a run, or if its files are malformed.
RunReport read_report(const Path& run);

std::string report_page(const RunReport& report);

// Returns the last section of the page, which shows the instructions in the first profiled step with one row
// per rank.
std::string timeline_svg(const std::vector<RankProfile>& ranks);

}  // namespace optimus
