// See deciding.h: what steps cannot tell is looked at between two of them (switching/probe.h). Which node of a ring is slow, and whether those
// whom the plan has left out are well again.
#include <algorithm>
#include <cmath>

#include "adapt/deciding.h"
#include "adapt/lifetime.h"

namespace optimus {
namespace {
constexpr double kSlowNetwork = 1.3;  // of what the usual node has, when links were probed
// Seconds. What a look takes is short, so it may be wrong: in the lab, one of 28 looks took a host at half its pace for well.
constexpr double kConfirmedAfter = 1;
}  // namespace

// Members of one ring all see its slowest link. Two nodes have only each other to compare with.
void Deciding::name_nodes() {
  constexpr double kFirstLook = 30, kLongestLook = 600;  // seconds between two
  constexpr int kPatience = 10;                          // observations; then nobody will look
  num_waited_ = probing_ == Probing::no ? 0 : num_waited_ + 1;
  if (num_waited_ > kPatience) probing_ = Probing::no;
  bool is_unclear = false;
  for (Finding& one : findings_) {
    if (one.cause != Cause::link || one.where.size() < 2 || detector_->topology().num_nodes() < 3) continue;
    is_unclear = true;
    name_nodes_of(one);
  }
  if (networks_) networks_->num_quiet = is_unclear ? 0 : networks_->num_quiet + 1;
  if (networks_ && networks_->num_quiet > kHeld) networks_.reset();
  if (!facts_.has_host_links) return;
  if (!is_unclear || !decides() || asked_ || probing_ != Probing::no) return;
  if (networks_ && facts_.clock() < networks_->next) return;
  if (!networks_) networks_.emplace();
  networks_->wait = std::clamp(2 * networks_->wait, kFirstLook, kLongestLook);
  networks_->next = facts_.clock() + networks_->wait;
  want_to_look({.who_is_slow = true});
}

// Who is slower by far less than the worst has had a bad moment.
void Deciding::name_nodes_of(Finding& finding) const {
  if (!networks_ || networks_->slower.empty()) return;
  const auto slower = [&](int node) {
    return node < std::ssize(networks_->slower) ? networks_->slower[static_cast<std::size_t>(node)] : 0;
  };
  double worst = 1;
  for (const int node : finding.where) worst = std::max(worst, slower(node));
  const double least = std::max(kSlowNetwork, std::sqrt(worst));
  std::vector<int> named;
  for (const int node : finding.where)
    if (slower(node) >= least) named.push_back(node);
  if (named.empty()) return;
  finding.where = std::move(named), finding.factor = std::max(finding.factor, worst);
}

// What plans with other channels would take is measured early, once: an answer must not wait for it.
void Deciding::look_at_channels() {
  const Look missing = calibration_.missing();
  if (has_looked_at_channels_ || !facts_.has_host_links || missing == Look()) return;
  if (!decides() || !calibration_.is_known() || probing_ != Probing::no || asked_) return;
  if (cluster_.num_nodes() < 2 || !is_quiet()) return;
  has_looked_at_channels_ = true;
  want_to_look(missing);
}

void Deciding::want_to_look(const Look& look) { look_ = look, probing_ = Probing::wanted; }

bool Deciding::is_quiet() const {
  return std::none_of(findings_.begin(), findings_.end(),
                      [](const Finding& one) { return is_answerable(one.cause); });
}

// A look is a moment in which nobody trains; an end that is seen late is time on fewer devices, on average half of the time between two looks.
// With c seconds a look, a chance of h a second that it ends, and a part g of the devices away (or one that is hidden), both together are least
// with sqrt(2 c / (g h)) seconds between two.
double Deciding::until_next_look() const {
  constexpr double kLook = 0.2, kShortest = 10, kLongest = 600;  // seconds; the lab's looks take 0.1 to 0.3
  double worth = 0;
  for (const Away& one : away_)
    worth += chance_to_end(usual_lifetime(one.finding.cause), facts_.clock() - one.since);
  const auto most = static_cast<double>(cluster_.num_devices());
  worth *= std::max(1 - num_devices(plan_) / most, 1 / most);
  return std::clamp(std::sqrt(2 * kLook / std::max(worth, 1e-9)), kShortest, kLongest);
}

void Deciding::look_at_those_away() {
  const auto can_be_told = [&](const Away& one) {
    if (one.finding.cause == Cause::link) return facts_.has_host_links && cluster_.num_nodes() >= 3;
    return cluster_.num_devices() >= 3;
  };
  if (std::none_of(away_.begin(), away_.end(), can_be_told)) return;
  if (!decides() || probing_ != Probing::no || asked_) return;
  if (!last_look_) last_look_ = facts_.clock();
  const bool is_to_confirm =
      std::any_of(away_.begin(), away_.end(), [](const Away& one) { return one.seemed_well; });
  if (facts_.clock() - *last_look_ < (is_to_confirm ? kConfirmedAfter : until_next_look())) return;
  last_look_ = facts_.clock();
  want_to_look({.who_is_slow = true});
}

bool Deciding::wants_to_probe() {
  if (probing_ != Probing::wanted) return false;
  probing_ = Probing::under_way;
  return true;
}

std::vector<int> Deciding::nodes() const {
  std::vector<int> result;
  for (int device = 0; device < cluster_.num_devices(); ++device)
    result.push_back(cluster_.node_of(Device{device}));
  return result;
}

namespace {

// Of each, how much slower than the middle one it is; nothing where there are too few to tell.
std::vector<double> slower_than_usual(const std::vector<double>& seconds) {
  std::vector<double> known;
  for (const double one : seconds)
    if (one > 0) known.push_back(one);
  if (known.size() < 3) return {};
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::nth_element(known.begin(), middle, known.end());
  std::vector<double> result;
  for (const double one : seconds) result.push_back(one / *middle);
  return result;
}

}  // namespace

void Deciding::probed(const Probed& seen) {
  if (std::exchange(probing_, Probing::no) == Probing::no) return;
  if (look_.who_is_slow) {
    if (networks_) networks_->slower = slower_than_usual(seen.network);
    if (!away_.empty()) note_who_is_well(seen);
  } else if (is_quiet()) {
    calibration_.learn(seen, cluster_);
  } else {
    has_looked_at_channels_ = false;  // at another time
  }
}

// Devices that are slow by nature are compared with what is known of them. Half of the way back is enough: what is left is found again.
// Who is to come back was well at two looks.
void Deciding::note_who_is_well(const Probed& seen) {
  constexpr double kWell = 1.15;
  std::vector<double> seconds = seen.devices;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    seconds[i] *= cluster_.speed_of(Device{static_cast<int>(i)});
  const std::vector<double> devices = slower_than_usual(seconds),
                            networks = facts_.has_host_links ? slower_than_usual(seen.network)
                                                             : std::vector<double>();
  // The slowest of those meant; 0: nobody can tell.
  const auto slower = [&](const Finding& one) {
    double most = 0;
    const std::vector<double>& all = one.cause == Cause::link ? networks : devices;
    for (int i = 0; i < std::ssize(all); ++i) {
      const int place = one.cause == Cause::host ? cluster_.node_of(Device{i}) : i;
      if (place == one.where.front()) most = std::max(most, all[static_cast<std::size_t>(i)]);
    }
    return most;
  };
  const double later = facts_.clock() + 3 * until_next_look();
  const std::vector<Away> before = std::exchange(away_, {});
  for (const Away& one : before) {
    const double now = slower(one.finding);
    const bool is_well = now > 0 && now < std::max(kWell, std::sqrt(one.finding.factor));
    if (is_well && one.seemed_well) {
      std::erase_if(findings_, [&](const Finding& known) {
        return known.cause == one.finding.cause && known.where == one.finding.where;
      });
      continue;
    }
    away_.push_back(one);
    away_.back().seemed_well = is_well;
    // It is looked at again before it is tried.
    if (now > 0) away_.back().until = std::max(one.until, later);
  }
}

}  // namespace optimus
