// See deciding.h: what a few steps have shown may last. Its answer is weighed and prepared meanwhile, and done when the detector has found it: so a
// change comes when it is sure that it is needed, and not only begins then. Devices and hosts alone: a slow network is looked at first.
#include <algorithm>

#include "adapt/deciding.h"

namespace optimus {

DetectorOptions hasty_options() {
  constexpr int kSteps = 4;
  constexpr double kNever = 1e9;
  DetectorOptions options;
  options.short_window = options.quick_window = kSteps, options.short_factor = options.quick_factor;
  options.long_factor = options.link_short_factor = options.link_long_factor = kNever;
  return options;
}

void Deciding::suspect(const Observation& seen) {
  suspected_ = hasty_->see(seen);
  std::erase_if(suspected_, [](const Finding& one) {
    return (one.cause != Cause::device && one.cause != Cause::host) ||
           one.factor < hasty_options().quick_factor;
  });
  if (is_suspicion_ && is_wished_) ++num_suspecting_;
}

bool Deciding::may_suspect() const {
  return decides() && is_quiet() && !facts_.foretold && !suspected_.empty() && facts_.clock() >= suspects_at_;
}

Suspicion Deciding::suspicion() const {
  constexpr int kPatience = 12;  // observations; what lasts is found within ten
  const auto are_same = [&](const std::vector<Condition>& now) {
    return std::is_permutation(
        now.begin(), now.end(), asked_for_.begin(), asked_for_.end(),
        [](const Condition& a, const Condition& b) { return a.cause == b.cause && a.where == b.where; });
  };
  if (const std::vector<Condition> found = conditions(); !found.empty())
    return are_same(found) ? Suspicion::right : Suspicion::wrong;
  return are_same(conditions(suspected_)) && num_suspecting_ <= kPatience ? Suspicion::open
                                                                          : Suspicion::wrong;
}

// Each one that was wrong is a reason to wait longer for the next: preparing is not for nothing.
void Deciding::withdrawn() {
  constexpr double kFirst = 30, kLongest = 600;  // seconds
  suspicion_wait_ = std::clamp(2 * suspicion_wait_, kFirst, kLongest);
  suspects_at_ = facts_.clock() + suspicion_wait_;
  is_wished_ = is_suspicion_ = false, asked_for_.clear();
}

}  // namespace optimus
