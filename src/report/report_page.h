// The report of a run as one HTML page: what has become of its loss, its speed and its plan, what it decided and why, and a step in
// time where one was profiled. Nothing on it comes from elsewhere: no script, no font, no picture. Pure; what the folder holds is read
// by read_report().
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
  std::vector<RankProfile> ranks{};  // of the last profile; none: it is left out
};

// Throws UserError where no run lies, or its files are not ours.
RunReport read_report(const Path& run);

std::string report_page(const RunReport& report);

// Its last part: what ranks did in the first profiled step, a row each.
std::string timeline_svg(const std::vector<RankProfile>& ranks);

}  // namespace optimus
