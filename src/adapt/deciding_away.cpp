// See deciding.h: what is known to be slow where no step of the present plan shows it. When it is looked at: deciding_probe.cpp.
#include <algorithm>
#include <cmath>

#include "adapt/deciding.h"
#include "adapt/lifetime.h"

namespace optimus {

// What the plan was changed for, and is not found on the new one, has hardly ended in that very moment: with less to do, a device, or a network,
// may not show how slow it is. It is looked at as those are that the plan does not use.
void Deciding::note_hidden() {
  std::erase_if(held_, [&](const Finding& one) {
    if (is_found(one)) return false;
    put_away(one);
    return true;
  });
}

void Deciding::add_unless_found(const std::vector<Finding>& known) {
  for (const Finding& one : known)
    if (!is_found(one)) findings_.push_back(one);
}

bool Deciding::is_found(const Finding& known) const {
  for (const Finding& one : findings_)
    for (const int place : one.where)
      for (const int known_place : known.where)
        if (is_part_of({one.cause, place}, {known.cause, known_place})) return true;
  return false;
}

// The same, or a device of a host.
bool Deciding::is_part_of(const Condition& one, const Condition& known) const {
  if (known.cause == Cause::host && one.cause == Cause::device)
    return cluster_.node_of(Device{one.where}) == known.where;
  return known.cause == one.cause && known.where == one.where;
}

// Each time that it was still slow when it was tried again it is given twice as long.
void Deciding::put_away(Finding finding) {
  double& tries = tries_[{finding.cause, finding.where.front()}];
  const double rest = expected_rest(usual_lifetime(finding.cause), 0, facts_.policy.horizon);
  away_.push_back({std::move(finding), facts_.clock(), facts_.clock() + rest * std::exp2(tries++)});
}

// Nobody sees how machines are that the plan does not use: they are believed to stay as they are for as long as such conditions do, and
// are then tried again.
void Deciding::hold(std::vector<Finding> findings) {
  std::erase_if(findings, [](const Finding& one) {
    return !is_answerable(one.cause) || one.cause == Cause::heavy_stage;  // that one is the plan's
  });
  const std::vector<Away> before = std::exchange(away_, {});
  held_.clear();
  if (facts_.foretold) return;
  for (Finding& one : findings) {
    if (!concerning(plan_, {{one.cause, one.where.front(), one.factor}}).empty()) {
      held_.push_back(std::move(one));
      continue;
    }
    const auto known = std::find_if(before.begin(), before.end(), [&](const Away& away) {
      return away.finding.cause == one.cause && away.finding.where == one.where;
    });
    if (known != before.end()) {
      away_.push_back(*known);
      continue;
    }
    put_away(std::move(one));
  }
}

}  // namespace optimus
