// Implements failure_line.h.
#include "rundir/failure_line.h"

#include <algorithm>
#include <map>
#include <set>

namespace optimus {
namespace {

bool has_ended_as(const RankOutcome& outcome, WorkerReport::End end_kind) {
  return outcome.report && outcome.report->end == end_kind;
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
  for (const RankOutcome& outcome : outcomes)
    if (has_ended_as(outcome, WorkerReport::End::failed))
      return fmt::format("{}: {}{}", outcome.name, outcome.report->why, observed_by);
  // If a rank is reported as missing but has sent a report, it was only waiting for other ranks too.
  const auto is_less_likely_cause = [&](const auto& a, const auto& b) {
    const auto silent = [&](int rank) {
      if (rank >= static_cast<int>(outcomes.size())) return false;
      const RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      return !outcome.report ||
             (has_ended_as(outcome, WorkerReport::End::lost) && outcome.report->why.empty());
    };
    return std::pair(silent(a.first), a.second) < std::pair(silent(b.first), b.second);
  };
  const auto suspect = std::max_element(missed_counts.begin(), missed_counts.end(), is_less_likely_cause);
  if (suspect != missed_counts.end() && suspect->first < static_cast<int>(outcomes.size())) {
    const RankOutcome& suspect_rank = outcomes[static_cast<std::size_t>(suspect->first)];
    return fmt::format("{} does not respond; its log is {}{}", suspect_rank.name, suspect_rank.log,
                       observed_by);
  }
  for (const RankOutcome& outcome : outcomes)
    if (!outcome.report)
      return fmt::format("{} ended without a report; its log is {}{}", outcome.name, outcome.log,
                         observed_by);
  return "the ranks lost contact with each other" + observed_by;
}

bool have_all_reported(const std::vector<RankOutcome>& outcomes) {
  std::set<int> missing;
  for (const RankOutcome& outcome : outcomes)
    if (outcome.report) missing.insert(outcome.report->missing.begin(), outcome.report->missing.end());
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    if (!outcomes[rank].report && !missing.contains(static_cast<int>(rank))) return false;
  return true;
}

}  // namespace optimus
