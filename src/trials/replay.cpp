// See replay.h.
#include "trials/replay.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "trials/replay_systems.h"

namespace optimus {

std::string text(System system) {
  switch (system) {
    case System::oobleck:
      return "oobleck";
    case System::varuna:
      return "varuna";
    case System::bamboo:
      return "bamboo";
    case System::ours:
      return "ours";
  }
  return "";
}

std::vector<std::string> system_words() { return {"oobleck", "varuna", "bamboo", "ours"}; }

System parse_system(std::string_view word, const std::string& setting_name) {
  for (const System system : {System::oobleck, System::varuna, System::bamboo, System::ours})
    if (text(system) == word) return system;
  throw UserError("{}: {} is not one of {}", setting_name, in_quotes(word), fmt::join(system_words(), ", "));
}

namespace {

ReplayOutcome replay_of(System system, const ReplayCase& replay_case) {
  switch (system) {
    case System::oobleck:
      return replay_oobleck(replay_case);
    case System::varuna:
      return replay_varuna(replay_case);
    case System::bamboo:
      return replay_bamboo(replay_case);
    case System::ours:
      return replay_ours(replay_case);
  }
  return {};
}

}  // namespace

ReplayOutcome replay(System system, const ReplayCase& replay_case) {
  ReplayOutcome outcome = replay_of(system, replay_case);
  const double samples = static_cast<double>(outcome.steps) * replay_case.batch;
  if (replay_case.trace.length > 0) outcome.goodput = samples / replay_case.trace.length;
  const Ideal ideal = ideal_of(replay_case);
  // The replay rounds step lengths down to whole ticks, but the ideal run does not.
  if (ideal.samples > 0) outcome.fraction_of_ideal = std::min(1.0, samples / ideal.samples);
  outcome.seconds_lost = std::max(0.0, ideal.seconds - outcome.useful_seconds);
  return outcome;
}

namespace {

// Returns the trace with all event times except the first and the last shifted by up to `max_shift` seconds.
// Events are not shifted beyond the next event.
AvailabilityTrace with_jitter(AvailabilityTrace trace, double max_shift, RandomKey key) {
  std::vector<NodeEvent>& events = trace.events;
  const double first = events.front().seconds, last = events.back().seconds;
  for (std::size_t begin = 0, end = 0, instant = 0; begin < events.size(); begin = end, ++instant) {
    const double time = events[begin].seconds;
    while (end < events.size() && events[end].seconds == time) ++end;
    if (time == first || time == last) continue;
    const double headroom = events[end].seconds - time;
    const double shifted = time + random_uniform(key, instant) * std::min(max_shift, 0.9 * headroom);
    for (std::size_t i = begin; i < end; ++i) events[i].seconds = shifted;
  }
  return trace;
}

double longest_step(const ReplayCase& replay_case) {
  double max_seconds = 0;
  for (const double speed : replay_case.throughput.samples_per_second)
    if (speed > 0) max_seconds = std::max(max_seconds, replay_case.batch / speed);
  return max_seconds;
}

}  // namespace

ReplayOutcome mean_replay(System system, const ReplayCase& replay_case, int repeats) {
  ensure(repeats > 0, "mean_replay(): expected at least one repeat, got {}", repeats);
  double steps = 0, steps_lost = 0, starts = 0;
  ReplayOutcome mean;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const RandomKey key =
        RandomKey(1).derive("instants of a trace").derive(static_cast<std::uint64_t>(repeat));
    const AvailabilityTrace shifted_trace =
        with_jitter(replay_case.trace, repeat == 0 ? 0 : longest_step(replay_case), key);
    const ReplayOutcome outcome =
        replay(system,
               ReplayCase{shifted_trace, replay_case.throughput, replay_case.batch, replay_case.ready_seconds,
                          replay_case.reconfiguration, replay_case.costs, replay_case.counting});
    mean.samples_per_second += outcome.samples_per_second / repeats;
    mean.goodput += outcome.goodput / repeats;
    mean.useful_seconds += outcome.useful_seconds / repeats;
    mean.fraction_of_ideal += outcome.fraction_of_ideal / repeats;
    mean.seconds_lost += outcome.seconds_lost / repeats;
    steps += static_cast<double>(outcome.steps) / repeats;
    steps_lost += static_cast<double>(outcome.steps_lost) / repeats;
    starts += static_cast<double>(outcome.starts) / repeats;
  }
  mean.steps = std::llround(steps);
  mean.steps_lost = static_cast<int>(std::lround(steps_lost)),
  mean.starts = static_cast<int>(std::lround(starts));
  return mean;
}

Ideal ideal_of(const ReplayCase& replay_case) {
  struct Change {
    double seconds;
    int node_change;
  };
  std::vector<Change> changes;
  std::vector<double> ready(static_cast<std::size_t>(replay_case.trace.num_nodes));
  for (const NodeEvent& event : replay_case.trace.events) {
    double& ready_time = ready[static_cast<std::size_t>(event.node)];
    if (event.is_add) ready_time = event.seconds + replay_case.ready_seconds;
    // A node that is lost before it is ready contributes no training time.
    changes.push_back(
        {event.is_add ? ready_time : std::max(ready_time, event.seconds), event.is_add ? 1 : -1});
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.seconds < b.seconds; });
  Ideal ideal;
  int nodes = 0;
  double interval_begin = 0;
  const auto add_interval = [&](double end_time) {
    double best = 0;  // fewer nodes may be faster
    for (int n = replay_case.reconfiguration.min_nodes; n <= nodes; ++n) {
      best = std::max(best, replay_case.throughput.at(n));
      if (n >= replay_case.throughput.max_nodes()) break;
    }
    if (best > 0)
      ideal.seconds += end_time - interval_begin, ideal.samples += best * (end_time - interval_begin);
  };
  for (const Change& change : changes) {
    if (change.seconds >= replay_case.trace.length) break;
    add_interval(change.seconds);
    nodes += change.node_change, interval_begin = change.seconds;
  }
  add_interval(replay_case.trace.length);
  return ideal;
}

AvailabilityTrace periodic_failures(int nodes, double interval, double absence, double length) {
  ensure(nodes > 0 && interval > 0 && absence > 0,
         "periodic_failures(): invalid arguments: {} nodes, a failure every {} s, absent for {} s", nodes,
         interval, absence);
  AvailabilityTrace trace;
  trace.num_nodes = nodes, trace.length = length, trace.form = "periodic failures";
  for (int node = 0; node < nodes; ++node) trace.events.push_back({0, true, node});
  std::vector<double> return_times(static_cast<std::size_t>(nodes));
  for (int i = 0; interval * (i + 1) < length; ++i) {
    const double loss_time = interval * (i + 1);
    const int node = i % nodes;
    if (return_times[static_cast<std::size_t>(node)] > loss_time) continue;  // still absent
    return_times[static_cast<std::size_t>(node)] = loss_time + absence;
    trace.events.push_back({loss_time, false, node});
    if (loss_time + absence < length) trace.events.push_back({loss_time + absence, true, node});
  }
  std::stable_sort(trace.events.begin(), trace.events.end(),
                   [](const NodeEvent& a, const NodeEvent& b) { return a.seconds < b.seconds; });
  // A replay ends at the last event, so an event is added at the end of the trace.
  trace.events.push_back({length, !trace.events.empty() && return_times.front() > length, 0});
  return trace;
}

}  // namespace optimus
