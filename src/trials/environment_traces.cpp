// Implements environment.h: generators of traces in which nodes join and leave.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "trials/environment.h"
#include "trials/random_stream.h"

namespace optimus {
namespace {

// Fitted to the first 60 % of Bamboo's p3 trace (6.8 h of AWS spot instances, 15 to 32 nodes). It has 50 loss
// events of 2.36 nodes on average, with a median gap of 240 s (standard deviation of the logarithm 1.08), and
// 60 join events of 2.27 nodes. The same authors' GCP trace of V100s (149 changes in 24 h, each of a tenth of
// the nodes) is within the range of the generator.
constexpr double kSpotGap = 240, kSpotSpread = 1.08, kSpotBurst = 2.36 / 32, kSpotMinLevel = 0.45;
// Fitted to the first 120 of 200 days of InfiniteHBD's fault trace. The cluster has one fault every 14.4 h.
// Outages have a median of 33 h and a mean of 202 h. The standard deviation of the logarithm is 2.6. It is
// reduced to 2 here because the tail is longer than any trial.
constexpr double kRepair = 33 * 3600, kRepairSpread = 2;
// In Oobleck's synthetic traces, one of 30 nodes is lost every 5 min to 6 h. Tenplex's schedule, derived from
// the Philly trace, uses 16, 8, 4, 8 and 16 devices for 35 min each.
constexpr double kShrinkFast = 300, kShrinkSlow = 21'600, kResizeLength = 2100;

class TraceMaker {
 public:
  TraceMaker(int nodes, double length) : nodes_(nodes), is_present_(static_cast<std::size_t>(nodes)) {
    trace_.num_nodes = nodes, trace_.length = length, trace_.form = "synthetic";
  }
  int num_present() const { return num_present_; }
  double length() const { return trace_.length; }
  void add_nodes(double at, int count) { change(at, count, true); }
  void remove_nodes(double at, int count) { change(at, count, false); }
  void add_event(double at, int node, bool is_add) {
    const auto index = static_cast<std::size_t>(node);
    if (is_present_[index] == is_add) return;
    is_present_[index] = is_add, num_present_ += is_add ? 1 : -1;
    trace_.events.push_back({at, is_add, node});
  }
  AvailabilityTrace take() { return std::move(trace_); }

 private:
  void change(double at, int count, bool is_add) {
    for (int node = 0; node < nodes_ && count > 0; ++node) {
      if (is_present_[static_cast<std::size_t>(node)] == is_add) continue;
      add_event(at, node, is_add), --count;
    }
  }
  int nodes_, num_present_ = 0;
  std::vector<bool> is_present_;
  AvailabilityTrace trace_;
};

void make_spot(TraceMaker& maker, int nodes, RandomStream& draw) {
  const double gap = kSpotGap * draw.log_uniform(0.4, 6) / 2,
               burst = nodes * kSpotBurst * draw.log_uniform(0.4, 2);
  maker.add_nodes(0, static_cast<int>(nodes * draw.between(kSpotMinLevel, 1) + 0.5));
  double level = draw.between(0.5, 1);
  for (double at = gap; at < maker.length(); at += gap * std::exp(kSpotSpread * draw.normal())) {
    if (draw.uniform() < 0.02) level = draw.between(kSpotMinLevel, 1);  // the spot market changes
    const int count = 1 + static_cast<int>(-std::log(1 - draw.uniform()) * std::max(0.0, burst - 1) + 0.5);
    const double deficit = level - static_cast<double>(maker.num_present()) / nodes;
    if (draw.uniform() < std::clamp(0.5 + 2 * deficit, 0.05, 0.95))
      maker.add_nodes(at, count);
    else
      maker.remove_nodes(at, std::min(count, maker.num_present() - 1));
  }
}

void make_shrink(TraceMaker& maker, int nodes, RandomStream& draw) {
  const double interval = maker.length() / (nodes * draw.between(0.3, 0.6));
  maker.add_nodes(0, nodes);
  for (double at = interval; at < maker.length();
       at += interval * (draw.uniform() < 0.5 ? 1 : draw.between(0.5, 1.5)))
    if (maker.num_present() > 1) maker.remove_nodes(at, 1);
}

void make_faults(TraceMaker& maker, int nodes, RandomStream& draw) {
  const double gap = maker.length() / draw.log_uniform(5, 60), repair = kRepair * draw.log_uniform(0.003, 1);
  std::multimap<double, int> return_times;
  maker.add_nodes(0, nodes);
  for (double at = 0; at < maker.length();) {
    at += -gap * std::log(1 - draw.uniform());
    for (; !return_times.empty() && return_times.begin()->first < std::min(at, maker.length());
         return_times.erase(return_times.begin()))
      maker.add_event(return_times.begin()->first, return_times.begin()->second, true);
    if (at >= maker.length() || maker.num_present() < 2) continue;
    const int node = static_cast<int>(draw.uniform() * nodes);
    maker.add_event(at, node, false);
    return_times.emplace(at + repair * std::exp(kRepairSpread * draw.normal()), node);
  }
}

void make_resize(TraceMaker& maker, int nodes, RandomStream& draw) {
  constexpr std::array<double, 5> kParts = {1, 0.5, 0.25, 0.75, 0.875};
  maker.add_nodes(0, nodes);
  const double length = kResizeLength * draw.log_uniform(0.3, 3);
  for (double at = length; at < maker.length(); at += length * draw.between(0.5, 1.5)) {
    const int num_requested = std::max(1, static_cast<int>(nodes * kParts[draw.below(kParts.size())]));
    if (num_requested > maker.num_present())
      maker.add_nodes(at, num_requested - maker.num_present());
    else
      maker.remove_nodes(at, maker.num_present() - num_requested);
  }
}

}  // namespace

std::string text(TrialFamily family) {
  constexpr std::array<const char*, 6> kNames = {"spot", "shrink", "faults", "resize", "slow", "mixed"};
  return kNames[static_cast<std::size_t>(family)];
}

AvailabilityTrace random_trace(TrialFamily family, int nodes, std::uint64_t number) {
  RandomStream draw(RandomKey(number).derive("trace").derive(static_cast<std::uint64_t>(family)));
  switch (family) {
    case TrialFamily::spot: {
      TraceMaker maker(nodes, draw.between(4, 12) * 3600);
      make_spot(maker, nodes, draw);
      return maker.take();
    }
    case TrialFamily::shrink: {
      TraceMaker maker(nodes, nodes / 2.0 * draw.log_uniform(kShrinkFast, kShrinkSlow));
      make_shrink(maker, nodes, draw);
      return maker.take();
    }
    case TrialFamily::faults: {
      TraceMaker maker(nodes, draw.log_uniform(1, 60) * 86'400);
      make_faults(maker, nodes, draw);
      return maker.take();
    }
    case TrialFamily::resize: {
      TraceMaker maker(nodes, draw.between(4, 24) * 3600);
      make_resize(maker, nodes, draw);
      return maker.take();
    }
    case TrialFamily::slow:
    case TrialFamily::mixed:
      break;
  }
  ensure(false, "scenario family {} has no node traces", text(family));
  return {};
}

AvailabilityTrace piece_of(const AvailabilityTrace& trace, double begin, double end) {
  AvailabilityTrace piece;
  piece.length = end - begin, piece.num_nodes = trace.num_nodes, piece.form = trace.form;
  std::vector<bool> is_present(static_cast<std::size_t>(trace.num_nodes));
  for (const NodeEvent& event : trace.events)
    if (event.seconds <= begin) is_present[static_cast<std::size_t>(event.node)] = event.is_add;
  for (int node = 0; node < trace.num_nodes; ++node)
    if (is_present[static_cast<std::size_t>(node)]) piece.events.push_back({0, true, node});
  for (const NodeEvent& event : trace.events)
    if (event.seconds > begin && event.seconds < end)
      piece.events.push_back({event.seconds - begin, event.is_add, event.node});
  return piece;
}

}  // namespace optimus
