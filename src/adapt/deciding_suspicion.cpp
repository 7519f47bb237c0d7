// See deciding.h: what a few steps have shown may last. Its answer is weighed and prepared meanwhile, and done when the detector has found it: so a
// change comes when it is sure that it is needed, and not only begins then. Devices and hosts alone: a slow network is looked at first.
#include <algorithm>

#include "adapt/deciding.h"

namespace optimus {

void Deciding::suspect(const Observation& seen) {
  suspected_ = hasty_->see(seen);
  std::erase_if(suspected_, [](const Finding& one) {
    return (one.cause != Cause::device && one.cause != Cause::host) ||
           one.factor < hasty_options().quick_factor;
  });
  if (is_suspicion_ && asked_) ++num_suspecting_;
}

// Once in a while: a suspicion that brings no wish, and one that passes, are over by then.
void Deciding::weigh_suspicion() {
  constexpr double kWait = 30;  // seconds
  if (weighing_.valid() || asked_ || probing_ != Probing::no || std::ssize(recent_) < kHastySteps) return;
  if (!decides() || facts_.foretold || !is_quiet() || suspected_.empty()) return;
  if (facts_.clock() < suspects_at_ || !are_steps_longer(kHastySteps)) return;
  suspects_at_ = facts_.clock() + kWait;
  begin_weighing(true);
}

Suspicion Deciding::suspicion() const {
  // Until it is found: ten observations, or as long as what jumps about must last, and some more.
  constexpr int kPatience = 12;
  const double longest = DetectorOptions{}.unsteady_seconds + 2;
  constexpr double kNear = 1.4;  // a plan for another severity may be another one
  const auto are_same = [&](const std::vector<Condition>& now) {
    return std::is_permutation(now.begin(), now.end(), asked_->conditions.begin(), asked_->conditions.end(),
                               [](const Condition& a, const Condition& b) {
                                 const double apart = std::max(a.factor / b.factor, b.factor / a.factor);
                                 return a.cause == b.cause && a.where == b.where && apart <= kNear;
                               });
  };
  if (!asked_) return Suspicion::wrong;
  if (const std::vector<Condition> found = conditions(); !found.empty())
    return are_same(found) ? Suspicion::right : Suspicion::wrong;
  const bool has_time = num_suspecting_ <= kPatience || facts_.clock() - suspected_at_ < longest;
  return has_time && are_same(conditions(suspected_)) ? Suspicion::open : Suspicion::wrong;
}

// Each one that was wrong is a reason to wait longer for the next: preparing is not for nothing.
void Deciding::withdrawn() {
  constexpr double kFirst = 30, kLongest = 600;  // seconds
  if (suspicion() == Suspicion::wrong) {
    suspicion_wait_ = std::clamp(2 * suspicion_wait_, kFirst, kLongest);
    suspects_at_ = facts_.clock() + suspicion_wait_;
  }
  is_suspicion_ = false, asked_.reset();
}

}  // namespace optimus
