// Implements run_evidence.h.
#include "adapt/run_evidence.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "adapt/calibration.h"
#include "adapt/step_meter.h"
#include "cost/instruction_cost.h"
#include "simulate/simulate.h"

namespace optimus {
namespace {

double median_value(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Additional predictions of the cost model for one rank of a stage, which StageWork does not contain.
struct StagePredictions {
  double optimizer = 0, host = 0;
  std::array<double, kChannels> bytes{};  // bytes of the largest message
};

std::vector<StagePredictions> predictions_of_stages(const RunMeasurements& measurements, const Setup& setup) {
  const ModelWork model_work = work_of(measurements.model, measurements.plan.sequence_length);
  std::vector<StagePredictions> result;
  for (const Pipeline& pipeline : measurements.plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const int device = stage.devices.front();
      const PricedProgram priced(setup, model_work,
                                 compile_without_buffers(measurements.plan, measurements.model, device),
                                 Device{device});
      const std::vector<double> seconds = priced.price(fitted_constants());
      const StepMeter meter(priced.program(), measurements.plan, measurements.model, seconds);
      StagePredictions& stage_predictions = result.emplace_back();
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        const Op op = priced.program().instructions[i].op;
        if (op == Op::optimizer) stage_predictions.optimizer += seconds[i];
        if (op == Op::load_batch) stage_predictions.host += seconds[i];
        const auto [channel, bytes] = meter.message(i);
        double& largest = stage_predictions.bytes[static_cast<std::size_t>(channel)];
        largest = std::max(largest, bytes);
      }
    }
  return result;
}

class Collector {
 public:
  explicit Collector(const RunMeasurements& measurements)
      : measurements_(measurements),
        map_(DeviceMap::identity(measurements.cluster.num_devices())),
        setup_{measurements.plan,    measurements.model,
               measurements.cluster, map_,
               optimus_software(),   format_of(measurements.plan.precision)},
        topology_(measurements.plan, measurements.cluster, map_) {}

  std::vector<Evidence> from_instructions() {
    const std::vector<StagePredictions> predicted_stages = predictions_of_stages(measurements_, setup_);
    const std::vector<StageWork> work_of_stages =
        stage_work(measurements_.plan, measurements_.model, measurements_.cluster);
    for (const Observation& observation : measurements_.observations) {
      add_rates(observation);
      add_measure(observation, Measure::optimizer, ResidualKind::optimizer, predicted_stages,
                  &StagePredictions::optimizer);
      add_measure(observation, Measure::host, ResidualKind::host, predicted_stages, &StagePredictions::host);
      add_links(observation, predicted_stages, work_of_stages);
    }
    std::vector<Evidence> result;
    for (const auto& [key, logs] : logs_)
      if (std::ssize(logs) >= kMinObservations)
        result.push_back({key.first, key.second, std::clamp(median_value(logs), -kMaxValue, kMaxValue), 0,
                          static_cast<int>(logs.size())});
    return result;
  }

  // Used if instructions were not timed. Attributes the whole error of a step to the layers. The uncertainty
  // grows with the fraction of the step that is not spent in layers.
  std::vector<Evidence> from_steps() const {
    const StepPrediction step = StepSimulator(setup_).run(fitted_constants());
    double compute = 0;
    for (const StagePrediction& stage : step.stages) compute = std::max(compute, stage.split.compute);
    if (!(step.seconds > 0)) return {};
    constexpr double kStepUncertainty = 0.05;
    const double remainder = std::clamp(1 - compute / step.seconds, 0.0, 1.0);
    const double log = std::log(median_value(measurements_.step_seconds) / step.seconds);
    return {{ResidualKind::layers, measurements_.device, std::clamp(log, -kMaxValue, kMaxValue),
             kStepUncertainty + remainder, static_cast<int>(measurements_.step_seconds.size())}};
  }

 private:
  static constexpr double kMaxValue = 5;  // ratios larger than e^5 have another cause than the cost model

  void add_ratio(ResidualKind kind, const std::string& device_type, double measured, double predicted) {
    if (measured > 0 && predicted > 0) logs_[{kind, device_type}].push_back(std::log(measured / predicted));
  }

  void add_rates(const Observation& observation) {
    constexpr ResidualKind kRoles[] = {ResidualKind::embedding, ResidualKind::layers, ResidualKind::head};
    static_assert(std::size(kRoles) == kBlockRoles);
    for (std::size_t role = 0; role < kBlockRoles; ++role)
      add_ratio(kRoles[role], measurements_.device, observation.rates[role].seconds,
                observation.rates[role].predicted);
  }

  // Sums over all stages before dividing, so that stages with little of this work have little weight.
  void add_measure(const Observation& observation, Measure measure, ResidualKind kind,
                   const std::vector<StagePredictions>& predicted_stages, double StagePredictions::*member) {
    double measured = 0, predicted = 0;
    for (const auto& [group, steps] : observation.groups)
      if (group >= 0 && group < std::ssize(predicted_stages) && steps.of(measure).count > 0)
        measured += steps.of(measure).median(),
            predicted += predicted_stages[static_cast<std::size_t>(group)].*member;
    add_ratio(kind, measurements_.device, measured, predicted);
  }

  void add_links(const Observation& observation, const std::vector<StagePredictions>& predicted_stages,
                 const std::vector<StageWork>& stage_work) {
    for (const auto& [group, steps] : observation.groups) {
      if (group < 0 || group >= std::ssize(predicted_stages) || group >= topology_.num_groups()) continue;
      const auto g = static_cast<std::size_t>(group);
      for (std::size_t c = 0; c < kChannels; ++c) {
        const auto channel = static_cast<Channel>(c);
        const int rank = topology_.ranks_of_group(group).front();
        const bool is_between_nodes = topology_.nodes_of(rank, channel).size() > 1;
        const Spread& spread = steps.of(measure_of(channel));
        if (spread.count == 0) continue;
        // In bytes. For larger messages, latency is a small fraction of the time on all known links.
        constexpr double kSmall = 256 << 10;
        add_ratio(predicted_stages[g].bytes[c] < kSmall ? ResidualKind::small_messages
                                                        : ResidualKind::large_messages,
                  measurements_.device + (is_between_nodes ? "/network" : "/domain"), spread.median(),
                  stage_work[g].links[c]);
      }
    }
  }

  const RunMeasurements& measurements_;
  const DeviceMap map_;
  const Setup setup_;
  const Topology topology_;
  // Logarithms of the ratios. Each observation adds one value, or several for links.
  std::map<std::pair<ResidualKind, std::string>, std::vector<double>> logs_;
};

}  // namespace

std::vector<Evidence> evidence_of(const RunMeasurements& measurements) {
  const double seconds =
      std::accumulate(measurements.step_seconds.begin(), measurements.step_seconds.end(), 0.0);
  if (measurements.model.is_custom() || std::ssize(measurements.step_seconds) < kMinSteps ||
      seconds < kMinRunSeconds)
    return {};
  const auto is_timed = [](const Observation& observation) {
    return observation.rates[static_cast<std::size_t>(BlockRole::layer)].seconds > 0;
  };
  Collector collector(measurements);
  if (std::count_if(measurements.observations.begin(), measurements.observations.end(), is_timed) >=
      kMinObservations)
    return collector.from_instructions();
  return collector.from_steps();
}

PastStrategy strategy_of(const Plan& plan) {
  const Pipeline& pipeline = plan.pipelines.front();
  const Stage& stage = pipeline.stages.front();
  const LayerStrategy& layer = stage.chunks.front().runs.back().strategy;
  PastStrategy past;
  past.pp = static_cast<int>(pipeline.stages.size()), past.tp = layer.tp, past.cp = layer.cp;
  past.dp = data_parallel(stage, layer), past.chunks = static_cast<int>(stage.chunks.size());
  past.microbatch = std::max(1, pipeline.microbatches.front() / std::max(1, past.dp));
  past.zero = layer.zero, past.sequence_parallel = layer.sequence_parallel;
  past.recompute = text(layer.recompute), past.schedule = text(plan.schedule);
  return past;
}

}  // namespace optimus
