// Implements failure_line.h.
#include "rundir/failure_line.h"

#include <algorithm>
#include <map>
#include <set>

namespace optimus {
namespace {

bool has_ended_as(const RankOutcome& end, WorkerReport::End end_kind) {
  return end.report && end.report->end == end_kind;
}

}  // namespace

std::string failure_line(const std::vector<RankOutcome>& outcomes) {
  std::map<int, int> missed_counts;  // by rank: how many ranks report it as missing
  std::string observed_by;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (!has_ended_as(outcomes[rank], WorkerReport::End::lost)) continue;
    for (const int missing : outcomes[rank].report->missing) ++missed_counts[missing];
    if (observed_by.empty() && !outcomes[rank].report->why.empty())
      observed_by = fmt::format("; rank {} reported: {}", rank, outcomes[rank].report->why);
  }
  for (const RankOutcome& end : outcomes)
    if (has_ended_as(end, WorkerReport::End::failed))
      return fmt::format("{}: {}{}", end.who, end.report->why, observed_by);
  // A rank that others report as missing, but that has reported itself, was only waiting for other ranks
  // too.
  const auto is_less_likely_cause = [&](const auto& a, const auto& b) {
    const auto silent = [&](int rank) {
      if (rank >= static_cast<int>(outcomes.size())) return false;
      const RankOutcome& end = outcomes[static_cast<std::size_t>(rank)];
      return !end.report || (has_ended_as(end, WorkerReport::End::lost) && end.report->why.empty());
    };
    return std::pair(silent(a.first), a.second) < std::pair(silent(b.first), b.second);
  };
  const auto most = std::max_element(missed_counts.begin(), missed_counts.end(), is_less_likely_cause);
  if (most != missed_counts.end() && most->first < static_cast<int>(outcomes.size())) {
    const RankOutcome& missed = outcomes[static_cast<std::size_t>(most->first)];
    return fmt::format("{} does not respond; its log is {}{}", missed.who, missed.log, observed_by);
  }
  for (const RankOutcome& end : outcomes)
    if (!end.report)
      return fmt::format("{} ended without a report; its log is {}{}", end.who, end.log, observed_by);
  return "the ranks lost contact with each other" + observed_by;
}

bool have_all_reported(const std::vector<RankOutcome>& outcomes) {
  std::set<int> missing;
  for (const RankOutcome& end : outcomes)
    if (end.report) missing.insert(end.report->missing.begin(), end.report->missing.end());
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    if (!outcomes[rank].report && !missing.contains(static_cast<int>(rank))) return false;
  return true;
}

}  // namespace optimus
