// See simulated_run.h.
#include "trials/simulated_run.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <span>

#include "model/tensors.h"
#include "simulate/simulate.h"

namespace optimus {
namespace {

StepPrediction predicted_step(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  const DeviceMap map = DeviceMap::of_present(cluster);
  const Setup setup{plan, model, cluster, map, optimus_software(), format_of(plan.precision)};
  return StepSimulator(setup).run(fitted_constants(), false);
}

Topology topology_of(const Plan& plan, const HardwareProfile& profile) {
  const Cluster cluster(profile);
  return Topology(plan, cluster, DeviceMap::of_present(cluster));
}

}  // namespace

SimulatedRun::SimulatedRun(const Plan& plan, const ModelSpec& model, const HardwareProfile& profile,
                           Noise noise, std::uint64_t seed)
    : plan_(plan),
      model_(model),
      profile_(profile),
      noise_(std::move(noise)),
      topology_(topology_of(plan, profile)),
      key_(RandomKey(seed).derive("imagine")) {
  const Cluster cluster(profile_);
  if (noise_.recorded_seconds > 0)
    scale_ = noise_.recorded_seconds / predicted_step(plan_, model_, cluster).seconds;
  usual_times_ = rank_times(cluster);
  stage_work_ = stage_work(plan_, model_, cluster);
  rank_noise_.resize(usual_times_.size());
  for (RankNoise& rank : rank_noise_) {
    rank.offset = noise_.rank_spread * normal();
    if (!noise_.recorded.empty())
      rank.rank_offset = static_cast<std::size_t>(uniform() * static_cast<double>(noise_.recorded.size()));
  }
  set({});
}

double SimulatedRun::uniform() { return random_uniform(key_, num_drawn_++); }

double SimulatedRun::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// The times of each rank as predicted by the cost model, where messages and collectives use the rank's actual
// links.
std::vector<SimulatedRun::RankTimes> SimulatedRun::rank_times(const Cluster& cluster) const {
  const StepPrediction step = predicted_step(plan_, model_, Cluster(profile_));
  const DeviceMap map = DeviceMap::of_present(cluster);
  const LinkCost cost(fitted_constants());
  std::vector<RankTimes> times(static_cast<std::size_t>(topology_.num_ranks()));
  const double width = bytes_of(plan_.precision);
  const double parameters = static_cast<double>(num_parameters(model_)) / topology_.num_groups();
  for (int group = 0; group < topology_.num_groups(); ++group) {
    const StagePrediction& stage = step.stages[static_cast<std::size_t>(group)];
    const Pipeline& pipeline = plan_.pipelines[static_cast<std::size_t>(stage.pipeline)];
    const auto num_microbatches = static_cast<double>(pipeline.microbatches.size());
    for (const int rank : topology_.ranks_of_group(group)) {
      RankTimes& times_of_rank = times[static_cast<std::size_t>(rank)];
      times_of_rank.compute = stage.split.compute * scale_, times_of_rank.host = stage.split.host * scale_;
      times_of_rank.optimizer = std::max(stage.split.optimizer * scale_, 1e-3 * times_of_rank.compute);
      for (std::size_t c = 0; c < kChannels; ++c) {
        const auto channel = static_cast<Channel>(c);
        const std::vector<int> members = topology_.members(rank, channel);
        if (members.size() < 2) continue;
        const bool is_message = channel == Channel::next || channel == Channel::previous;
        const double replicas = static_cast<double>(topology_.members(rank, Channel::data).size());
        const double activation = static_cast<double>(pipeline.microbatches.front()) / replicas *
                                  static_cast<double>(plan_.sequence_length * model_.hidden) * width;
        const double bytes = channel == Channel::data ? parameters * 4 : activation;
        const auto size = static_cast<double>(members.size());
        const double on_the_wire = is_message ? bytes : bytes * 2 * (size - 1) / size;
        const double num_messages = channel == Channel::data ? 1 : num_microbatches;
        const double seconds =
            is_message
                ? cost.message_seconds(
                      cluster.link(map[VirtualDevice{rank}], map[VirtualDevice{members.back()}]), bytes)
                : cost.collective_seconds(Collective::all_reduce, shape_of(members, cluster, map), bytes);
        times_of_rank.links[c] = {on_the_wire * num_messages, seconds * num_messages * scale_};
      }
    }
  }
  return times;
}

void SimulatedRun::set(const std::vector<Condition>& conditions) {
  conditions_ = conditions;
  const Cluster cluster(with_conditions(profile_, conditions));
  const DeviceMap map = DeviceMap::of_present(cluster);
  current_times_ = rank_times(cluster);
  for (int rank = 0; rank < topology_.num_ranks(); ++rank) {
    RankTimes& times_of_rank = current_times_[static_cast<std::size_t>(rank)];
    const Device device = map[VirtualDevice{rank}];
    const double speed = cluster.speed_of(device);
    times_of_rank.compute /= speed, times_of_rank.optimizer /= speed, times_of_rank.host /= speed;
    for (const Condition& condition : conditions)
      if (condition.cause == Cause::heavy_stage && condition.location == topology_.group_of(rank))
        times_of_rank.compute *= condition.factor;
  }
  step_seconds_ = predicted_step(plan_, model_, cluster).seconds * scale_;
}

double SimulatedRun::link_slowdown(int rank, Channel channel) const {
  const auto r = static_cast<std::size_t>(rank), c = static_cast<std::size_t>(channel);
  return usual_times_[r].links[c].seconds > 0
             ? current_times_[r].links[c].seconds / usual_times_[r].links[c].seconds
             : 1;
}

double SimulatedRun::noise_of(RankNoise& rank) {
  if (!noise_.recorded.empty()) {
    const double ratio = noise_.recorded[rank.rank_offset];
    rank.rank_offset = (rank.rank_offset + 1) % noise_.recorded.size();
    return ratio * std::exp(rank.offset);
  }
  rank.level =
      noise_.memory * rank.level + std::sqrt(1 - noise_.memory * noise_.memory) * noise_.spread * normal();
  if (rank.remaining_spike_steps > 0) {
    --rank.remaining_spike_steps;
  } else if (rank.spike = 0; uniform() < noise_.spike_chance) {
    rank.spike = -noise_.spike_size * std::log(1 - uniform());
    rank.remaining_spike_steps = static_cast<int>(-noise_.spike_steps * std::log(1 - uniform()));
  }
  return std::exp(rank.level + rank.offset + rank.spike);
}

Observation SimulatedRun::next() {
  Observation observation;
  observation.step = ++step_;
  common_noise_ = noise_.memory * common_noise_ +
                  std::sqrt(1 - noise_.memory * noise_.memory) * noise_.common_spread * normal();
  double wait = 0, length_imbalance = 1;
  for (const Condition& condition : conditions_) {
    if (condition.cause == Cause::data_loading) wait = (1 - 1 / condition.factor) * step_seconds_;
    if (condition.cause == Cause::uneven_lengths) length_imbalance = condition.factor;
  }
  const int longest_rank = static_cast<int>(uniform() * topology_.num_ranks());
  for (int rank = 0; rank < topology_.num_ranks(); ++rank) {
    const RankTimes& base = current_times_[static_cast<std::size_t>(rank)];
    RankStep rank_step{.rank = rank, .group = topology_.group_of(rank)};
    if (rank_step.group < 0) continue;
    const double noise = noise_of(rank_noise_[static_cast<std::size_t>(rank)]) * std::exp(common_noise_);
    if (rank == longest_rank) rank_step.relative_work = length_imbalance;
    const double compute = base.compute * noise * rank_step.relative_work;
    rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)] = {1, compute / 3, 0};
    rank_step.kinds[static_cast<std::size_t>(WorkKind::backward)] = {1, compute * 2 / 3, 0};
    rank_step.kinds[static_cast<std::size_t>(WorkKind::optimizer)] = {1, base.optimizer * noise, 0};
    rank_step.kinds[static_cast<std::size_t>(WorkKind::load_batch)] = {1, base.host * noise, 0};
    if (!stage_work_.empty()) {  // assumes that the cost model has the same error for all kinds of blocks
      const auto& stage_compute = stage_work_[static_cast<std::size_t>(rank_step.group)].compute;
      const double total = std::accumulate(stage_compute.begin(), stage_compute.end(), 0.0);
      for (std::size_t role = 0; role < kBlockRoles; ++role)
        rank_step.rates[role] = {compute * stage_compute[role] / total, stage_compute[role]};
    }
    rank_step.data_wait = wait * std::exp(noise_.link_spread * normal());
    rank_step.seconds = std::max(step_seconds_ + wait, compute + base.optimizer);
    for (std::size_t c = 0; c < kChannels; ++c)
      rank_step.links[c] = {base.links[c].bytes,
                            base.links[c].seconds * std::exp(noise_.link_spread * normal())};
    observation.add(rank_step);
  }
  return observation;
}

}  // namespace optimus
