// Implements failure_line.h.
#include "rundir/failure_line.h"

#include <algorithm>
#include <map>
#include <set>

namespace optimus {
namespace {

bool has_ended_as(const EndOfRank& end, WorkerReport::End how) {
  return end.report && end.report->end == how;
}

}  // namespace

std::string failure_line(const std::vector<EndOfRank>& ends) {
  std::map<int, int> votes;  // how many ranks missed each rank
  std::string seen;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (!has_ended_as(ends[rank], WorkerReport::End::lost)) continue;
    for (const int missing : ends[rank].report->missing) ++votes[missing];
    if (seen.empty() && !ends[rank].report->why.empty())
      seen = fmt::format("; rank {} reported: {}", rank, ends[rank].report->why);
  }
  for (const EndOfRank& end : ends)
    if (has_ended_as(end, WorkerReport::End::failed))
      return fmt::format("{}: {}{}", end.who, end.report->why, seen);
  // A missed rank that has reported was only waiting for others itself.
  const auto is_likelier = [&](const auto& a, const auto& b) {
    const auto silent = [&](int rank) {
      if (rank >= static_cast<int>(ends.size())) return false;
      const EndOfRank& end = ends[static_cast<std::size_t>(rank)];
      return !end.report || (has_ended_as(end, WorkerReport::End::lost) && end.report->why.empty());
    };
    return std::pair(silent(a.first), a.second) < std::pair(silent(b.first), b.second);
  };
  const auto most = std::max_element(votes.begin(), votes.end(), is_likelier);
  if (most != votes.end() && most->first < static_cast<int>(ends.size())) {
    const EndOfRank& missed = ends[static_cast<std::size_t>(most->first)];
    return fmt::format("{} does not respond; its log is {}{}", missed.who, missed.log, seen);
  }
  for (const EndOfRank& end : ends)
    if (!end.report) return fmt::format("{} ended without a report; its log is {}{}", end.who, end.log, seen);
  return "the ranks lost contact with each other" + seen;
}

bool is_all_told(const std::vector<EndOfRank>& ends) {
  std::set<int> missing;
  for (const EndOfRank& end : ends)
    if (end.report) missing.insert(end.report->missing.begin(), end.report->missing.end());
  for (std::size_t rank = 0; rank < ends.size(); ++rank)
    if (!ends[rank].report && !missing.contains(static_cast<int>(rank))) return false;
  return true;
}

}  // namespace optimus
