// Implements environment.h: draws workloads, costs, and slow nodes.
#include "trials/environment.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "policy/learned_policy.h"
#include "policy/lifetime.h"
#include "trials/random_stream.h"
#include "trials/timeline_trial.h"

namespace optimus {
namespace {

// Fraction of simulated runs with node losses that also have plans without redundant copies of the state.
constexpr double kFractionWithoutCopies = 0.25;

// Draws the throughput for each number of nodes. The node time per step (step time x nodes) grows with the
// number of nodes, by a factor of up to two. Some numbers of nodes are 0.3 to 3 % more efficient than others,
// and sometimes 20 %, because templates fit them better (observed for four models on 8 to 16,384 devices).
Throughput random_throughput(int nodes, double step, RandomStream& draw) {
  Throughput result;
  result.min_nodes = 1 + static_cast<int>(draw.uniform() * draw.uniform() * nodes / 2);
  const double growth = draw.log_uniform(0.02, 1);
  const double uneven = draw.chance(0.8) ? draw.log_uniform(0.003, 0.03) : draw.between(0.03, 0.2);
  for (int n = result.min_nodes; n <= nodes; ++n)
    result.samples_per_second.push_back(n * (1 + growth) / (nodes + growth * n) *
                                        std::exp(-uneven * std::abs(draw.normal())) / step);
  return result;
}

// Draws costs from ranges around the measured values (recovery/recovery_costs.h). The ranges extend to the
// values that other systems report (tens of seconds).
RecoveryCosts random_costs(RandomStream& draw) {
  RecoveryCosts costs;
  costs.start_seconds = draw.log_uniform(1, 60), costs.detection_seconds = draw.log_uniform(0.05, 10);
  costs.recovery_seconds = draw.log_uniform(0.2, 20);
  costs.switch_seconds = draw.log_uniform(0.05, kMaxSwitchSeconds);
  costs.prepare_seconds = draw.log_uniform(0.5, 60);
  costs.link_bytes_per_second = 1;
  // These values are seconds, because links transfer one byte per second here.
  costs.join_bytes = draw.log_uniform(0.05, kMaxMoveSeconds);
  costs.loss_bytes = draw.chance(0.3) ? 0 : costs.join_bytes * draw.between(0.5, 1);
  return costs;
}

void set_errors(TrialCase& trial_case, RandomStream& draw, const EnvironmentOptions& options) {
  if (options.prediction_error_spread >= 0) {
    trial_case.prediction_error = options.prediction_error_spread * draw.between(0.3, 1);
    trial_case.permanent_error = options.prediction_error_spread * draw.between(0.3, 1);
    trial_case.prediction_bias = std::exp(-options.mean_prediction_error);
    return;
  }
  // Half of the simulated runs have the default prediction errors of TrialCase (5 %, independent for each
  // prediction). The others have a random mixture of errors. Predictions of published runs were off by 6 to
  // 12 % (docs/results/accuracy.md).
  if (draw.chance(0.5)) return;
  trial_case.prediction_error = draw.between(0, 0.1), trial_case.permanent_error = draw.between(0, 0.1);
  if (draw.chance(0.2)) trial_case.prediction_bias = draw.log_uniform(0.6, 1.5);
  if (draw.chance(0.2)) trial_case.pause_prediction_bias = draw.log_uniform(0.3, 3);
}

// Adds each plan a second time without redundant copies of its state. Without copies it is faster, but a loss
// undoes all steps since the last checkpoint. The ranges are guesses around known values. Checkpoints are
// minutes to hours apart. Copies take 1 to 3 % of a step according to the cost model, and 8 % with three
// workers on two cores (tests/cli/switch_test.py).
void add_without_copies(TrialCase& trial_case, RandomStream& draw) {
  const double copy_cost = draw.log_uniform(0.005, 0.1), undone_steps = draw.log_uniform(3, 3000);
  const std::size_t num_modes = trial_case.modes.size();
  for (std::size_t m = 0; m < num_modes; ++m) {
    TrialMode without_copies = trial_case.modes[m];
    without_copies.usual_seconds *= 1 - copy_cost, without_copies.undone_steps = undone_steps,
                                                   without_copies.response = Response::replan;
    trial_case.modes.push_back(without_copies);
  }
  for (TrialSegment& segment : trial_case.segments)
    for (std::size_t m = 0; m < num_modes; ++m)
      segment.step_seconds.push_back(segment.step_seconds[m] * (1 - copy_cost));
}

TrialCase random_node_trial(TrialFamily family, std::uint64_t number, RandomStream& draw,
                            const EnvironmentOptions& options) {
  constexpr std::array<int, 4> kNodes = {8, 16, 32, 64};
  const int nodes = kNodes[draw.below(kNodes.size())];
  const int num_spare = draw.chance(0.25) ? static_cast<int>(nodes * draw.between(0, 0.25)) : 0;
  AvailabilityTrace trace = random_trace(family, nodes, number);
  Throughput throughput = random_throughput(nodes - num_spare, draw.log_uniform(0.3, 60), draw);
  double batch = 1;
  if (!options.traces.empty() && draw.chance(0.33)) {
    const AvailabilityTrace& full_trace = options.traces[draw.below(options.traces.size())];
    const double begin = draw.between(0, 0.5) * full_trace.length;
    trace = piece_of(full_trace, begin, begin + draw.between(0.3, 0.5) * full_trace.length);
  }
  if (!options.throughputs.empty())
    throughput = options.throughputs[draw.below(options.throughputs.size())], batch = options.batch;
  ReplayCase replay{.trace = trace, .throughput = throughput, .batch = batch};
  replay.ready_seconds = draw.chance(0.5) ? 0 : 45, replay.costs = random_costs(draw);
  constexpr std::array<int, 4> kDevices = {1, 8, 64, 512};
  TrialCase trial_case = trial_of(replay, kDevices[draw.below(kDevices.size())]);
  if (draw.chance(kFractionWithoutCopies)) add_without_copies(trial_case, draw);
  return trial_case;
}

// Draws the times at which devices, nodes or links are slow. Severities have the same distribution as in
// random_timeline() (adapt/condition_timeline.h).
ConditionTimeline random_conditions(double length, RandomStream& draw) {
  ConditionTimeline timeline{length, {}};
  const double gap = length / draw.log_uniform(3, 24);
  for (double at = -gap * std::log(1 - draw.uniform()); at < length;
       at += -gap * std::log(1 - draw.uniform())) {
    constexpr std::array<Cause, 3> kSlowCauses = {Cause::device, Cause::host, Cause::link};
    const Cause cause = kSlowCauses[draw.below(kSlowCauses.size())];
    const Lifetime lifetime = usual_lifetime(cause);
    const double factor = cause == Cause::device ? draw.log_uniform(1.1, 5)
                          : cause == Cause::host ? draw.log_uniform(1.1, 2)
                                                 : draw.log_uniform(1.15, 3);
    const double duration = lifetime.median * std::exp(lifetime.spread * draw.normal());
    timeline.conditions.push_back({{cause, 0, factor}, at, std::min(duration, length - at)});
  }
  return timeline;
}

// How sensitive a plan is to conditions: the fractions of its step time that grow with a slow device
// (compute) and a slow network.
struct PlanTraits {
  double usual_seconds = 1, compute = 1, network = 0.1;
  int responds_to = -1;         // index of the condition that the plan responds to; -1: none
  double remaining_effect = 0;  // fraction of that condition's effect that remains
};

class SlowTrial {
 public:
  SlowTrial(RandomStream& draw, TrialCase& trial_case) : draw_(draw), trial_case_(trial_case) {}

  void make() {
    timeline_ = random_conditions(draw_.between(6, 24) * 3600, draw_);
    step_ = draw_.log_uniform(0.1, 20), pause_ = draw_.log_uniform(0.05, 40);
    devices_ = 1 << (3 + draw_.below(12));
    const PlanTraits start_plan{1, draw_.between(0.6, 1), draw_.log_uniform(0.02, 0.5)};
    add(start_plan, Response::resume, devices_, 1);
    // The first plan is the planner's choice. Sometimes another plan is better, but only measurements show
    // this. Predictions for other kinds of plans are less accurate. In lab tests, a pipeline was predicted to
    // be 52 % faster than data parallelism but was 7 % slower.
    for (int i = 0; i < 3; ++i) {
      const double worse = std::abs(0.06 * draw_.normal()),
                   usual = 1 + (draw_.chance(0.2) ? -worse / 2 : worse);
      add({usual, draw_.between(0.5, 1), draw_.log_uniform(0.02, 0.5)}, Response::replan, devices_, 1);
      if (draw_.chance(0.5)) trial_case_.modes.back().uncertainty = draw_.log_uniform(0.05, 0.5);
    }
    for (int c = 0; c < std::ssize(timeline_.conditions); ++c) add_responses(start_plan, c);
    // additional prediction error of the responses
    const double uncertainty = draw_.chance(0.5) ? 0 : draw_.log_uniform(0.02, 0.2);
    for (TrialMode& mode : trial_case_.modes)
      if (mode.uncertainty == 0 && mode.response != Response::resume) mode.uncertainty = uncertainty;
    make_segments();
  }

 private:
  void add(const PlanTraits& traits, Response response, int devices, double pause) {
    plans_.push_back(traits);
    TrialMode mode{response, std::max(1, devices), step_ * traits.usual_seconds, pause_ * pause};
    trial_case_.modes.push_back(mode);
  }

  void add_responses(const PlanTraits& start_plan, int condition) {
    const bool is_link =
        timeline_.conditions[static_cast<std::size_t>(condition)].condition.cause == Cause::link;
    const int parts = std::min(devices_, 4 << draw_.below(5));  // number of replicas or nodes
    const double part = 1.0 / parts;
    if (!is_link && draw_.chance(0.7))
      add({1 + draw_.between(0, 0.05), start_plan.compute, start_plan.network, condition,
           part * draw_.between(0, 1)},
          Response::share, devices_, 0.5);
    if (draw_.chance(0.4))
      add({1 + draw_.between(0.01, 0.3), start_plan.compute, start_plan.network, condition,
           draw_.between(0.1, 0.5)},
          Response::recut, devices_, 1);
    if (parts > 1)
      add({1 / (1 - part), start_plan.compute, start_plan.network, condition, 0}, Response::drop,
          devices_ - devices_ / parts, 1);
  }

  double seconds_of(const PlanTraits& plan, const std::vector<std::size_t>& active) const {
    double compute = 0, network = 0;
    for (const std::size_t c : active) {
      const Condition& condition = timeline_.conditions[c].condition;
      const double effect =
          (condition.factor - 1) * (plan.responds_to == static_cast<int>(c) ? plan.remaining_effect : 1);
      double& worst = condition.cause == Cause::link ? network : compute;
      worst = std::max(worst, effect);
    }
    return step_ * plan.usual_seconds * (1 + plan.compute * compute + plan.network * network);
  }

  void make_segments() {
    std::set<double> instants = {0, timeline_.length};
    for (const TimedCondition& condition : timeline_.conditions)
      instants.insert({condition.begin, condition.begin + condition.length});
    for (auto it = instants.begin(); std::next(it) != instants.end(); ++it) {
      TrialSegment segment{*it, *std::next(it), {}, false, {}};
      std::vector<std::size_t> active;
      for (std::size_t c = 0; c < timeline_.conditions.size(); ++c) {
        const TimedCondition& condition = timeline_.conditions[c];
        if (condition.begin > segment.begin || segment.begin >= condition.begin + condition.length) continue;
        active.push_back(c);
        segment.conditions.push_back(
            {condition.condition.cause, condition.condition.factor, segment.begin - condition.begin});
      }
      for (const PlanTraits& plan : plans_) {
        // A plan that responds to a condition is available only after the condition has begun.
        const bool is_known =
            plan.responds_to < 0 ||
            timeline_.conditions[static_cast<std::size_t>(plan.responds_to)].begin <= segment.begin;
        segment.step_seconds.push_back(is_known ? seconds_of(plan, active) : 0);
      }
      trial_case_.segments.push_back(std::move(segment));
    }
    trial_case_.first_mode = 0;
  }

  RandomStream& draw_;
  TrialCase& trial_case_;
  ConditionTimeline timeline_;
  double step_ = 1, pause_ = 1;
  int devices_ = 8;
  std::vector<PlanTraits> plans_;
};

}  // namespace

TrialCase with_slow_machines(TrialCase nodes, std::uint64_t number) {
  RandomStream draw(RandomKey(number).derive("slow machines"));
  const ConditionTimeline timeline = random_conditions(nodes.segments.back().end, draw);
  const double compute = draw.between(0.6, 1), network = draw.log_uniform(0.02, 0.5);
  std::set<double> instants;
  for (const TimedCondition& condition : timeline.conditions)
    instants.insert({condition.begin, condition.begin + condition.length});
  const std::vector<TrialSegment> old_segments = std::exchange(nodes.segments, {});
  for (TrialSegment segment : old_segments) {
    int max_devices = 0;
    for (std::size_t m = 0; m < nodes.modes.size(); ++m)
      if (segment.step_seconds[m] > 0) max_devices = std::max(max_devices, nodes.modes[m].devices);
    while (segment.begin < segment.end) {
      TrialSegment piece = segment;
      if (const auto next = instants.upper_bound(segment.begin); next != instants.end())
        piece.end = std::min(segment.end, *next);
      double added_fraction = 0;
      for (const TimedCondition& condition : timeline.conditions) {
        if (condition.begin > piece.begin || piece.begin >= condition.begin + condition.length) continue;
        piece.conditions.push_back(
            {condition.condition.cause, condition.condition.factor, piece.begin - condition.begin});
        added_fraction =
            std::max(added_fraction, (condition.condition.factor - 1) *
                                         (condition.condition.cause == Cause::link ? network : compute));
      }
      for (std::size_t m = 0; m < nodes.modes.size(); ++m)
        if (nodes.modes[m].devices == max_devices) piece.step_seconds[m] *= 1 + added_fraction;
      segment.begin = piece.end, segment.is_loss = false;
      nodes.segments.push_back(std::move(piece));
    }
  }
  nodes.detection_steps = TrialCase{}.detection_steps;
  return nodes;
}

TrialCase random_trial(TrialFamily family, std::uint64_t number, const EnvironmentOptions& options) {
  RandomStream draw(RandomKey(number).derive("trial").derive(static_cast<std::uint64_t>(family)));
  TrialCase trial_case;
  if (family == TrialFamily::slow)
    SlowTrial(draw, trial_case).make(), trial_case.costs = random_costs(draw);
  else if (family == TrialFamily::mixed)
    trial_case =
        with_slow_machines(random_node_trial(kTrialFamilies[draw.below(3)], number, draw, options), number);
  else
    trial_case = random_node_trial(family, number, draw, options);
  trial_case.seed = RandomKey(number).derive("errors").value;
  set_errors(trial_case, draw, options);
  return trial_case;
}

}  // namespace optimus
