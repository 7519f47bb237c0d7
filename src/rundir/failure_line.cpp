// Implements failure_line.h.
#include "rundir/failure_line.h"

#include <algorithm>
#include <map>
#include <set>

namespace optimus {
namespace {

bool has_ended_as(const RankOutcome& end, WorkerReport::End how) {
  return end.report && end.report->end == how;
}

}  // namespace

std::string failure_line(const std::vector<RankOutcome>& ends) {
  std::map<int, int> missed_counts;  // how many ranks missed each rank
  std::string seen;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (!has_ended_as(ends[rank], WorkerReport::End::lost)) continue;
    for (const int missing : ends[rank].report->missing) ++missed_counts[missing];
    if (seen.empty() && !ends[rank].report->why.empty())
      seen = fmt::format("; rank {} reported: {}", rank, ends[rank].report->why);
  }
  for (const RankOutcome& end : ends)
    if (has_ended_as(end, WorkerReport::End::failed))
      return fmt::format("{}: {}{}", end.who, end.report->why, seen);
  // A missed rank that has reported was only waiting for others itself.
  const auto is_less_likely_cause = [&](const auto& a, const auto& b) {
    const auto silent = [&](int rank) {
      if (rank >= static_cast<int>(ends.size())) return false;
      const RankOutcome& end = ends[static_cast<std::size_t>(rank)];
      return !end.report || (has_ended_as(end, WorkerReport::End::lost) && end.report->why.empty());
    };
    return std::pair(silent(a.first), a.second) < std::pair(silent(b.first), b.second);
  };
  const auto most = std::max_element(missed_counts.begin(), missed_counts.end(), is_less_likely_cause);
  if (most != missed_counts.end() && most->first < static_cast<int>(ends.size())) {
    const RankOutcome& missed = ends[static_cast<std::size_t>(most->first)];
    return fmt::format("{} does not respond; its log is {}{}", missed.who, missed.log, seen);
  }
  for (const RankOutcome& end : ends)
    if (!end.report) return fmt::format("{} ended without a report; its log is {}{}", end.who, end.log, seen);
  return "the ranks lost contact with each other" + seen;
}

bool have_all_reported(const std::vector<RankOutcome>& ends) {
  std::set<int> missing;
  for (const RankOutcome& end : ends)
    if (end.report) missing.insert(end.report->missing.begin(), end.report->missing.end());
  for (std::size_t rank = 0; rank < ends.size(); ++rank)
    if (!ends[rank].report && !missing.contains(static_cast<int>(rank))) return false;
  return true;
}

}  // namespace optimus
