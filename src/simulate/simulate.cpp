// See simulate.h.
#include "simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace optimus {
namespace {

// The slowest device of a stage, which determines the speed of the stage. If all devices are equal, the
// search is skipped.
Device slowest_of(const Stage& stage, const Cluster& cluster, const DeviceMap& map, NumberFormat format) {
  const auto physical = [&](int device) { return map[VirtualDevice{device}]; };
  Device slowest = physical(stage.devices.front());
  if (cluster.profile().types.size() == 1 && cluster.profile().speed_factors.empty()) return slowest;
  const auto speed = [&](Device device) {
    const DeviceType& type = cluster.type_of(device);
    const double format_peak = peak_flops(type, format);
    const double peak = format_peak > 0 ? format_peak
                        : format == NumberFormat::tf32
                            ? type.peak.fp32
                            : std::max({type.peak.bf16, type.peak.fp16, type.peak.fp32});
    return peak * cluster.speed_of(device);
  };
  for (const int device : stage.devices)
    if (speed(physical(device)) < speed(slowest)) slowest = physical(device);
  return slowest;
}

// The types of the devices in a stage.
std::set<int> types_of(const Stage& stage, const Cluster& cluster, const DeviceMap& map) {
  if (cluster.profile().types.size() == 1) return {0};
  std::set<int> types;
  for (const int device : stage.devices) types.insert(cluster.group_of(map[VirtualDevice{device}]).type);
  return types;
}

Stage pattern_of(const Stage& stage, bool is_custom) {
  Stage pattern;
  pattern.chunks = stage.chunks;
  if (is_custom) return pattern;  // in custom models, all blocks are different
  for (Chunk& chunk : pattern.chunks) {
    const int first = chunk.first_block();
    for (BlockRun& run : chunk.runs) run.first_block -= first;
  }
  return pattern;
}

std::vector<int> block_patterns_of(const Stage& stage, const ModelSpec& model) {
  std::vector<int> patterns;
  if (!model.is_mixture()) return patterns;
  for (const Chunk& chunk : stage.chunks)
    for (int block = chunk.first_block(); block < chunk.end_block(); ++block)
      patterns.push_back(pattern(model, block));
  return patterns;
}

Plan shortened(Plan plan) {
  for (Pipeline& pipeline : plan.pipelines)
    pipeline.microbatches.assign(std::min<std::size_t>(2, pipeline.microbatches.size()),
                                 pipeline.microbatches.front());
  return plan;
}

// Throws a UserError for a plan with too many slots. All slots are simulated, and more than the limit would
// take minutes of time and gigabytes of memory.
void refuse_too_many_slots(const Plan& plan) {
  constexpr double kMaxSlots = 2e7;
  double slots = 0;
  for (const Pipeline& pipeline : plan.pipelines)
    slots += 3.0 * static_cast<double>(pipeline.stages.size()) *
             static_cast<double>(pipeline.microbatches.size()) *
             static_cast<double>(pipeline.stages.front().chunks.size());
  if (slots > kMaxSlots)
    throw UserError(
        "the plan has up to {:.0f} forward and backward passes of stages, but at most {:.0f} can be "
        "simulated; "
        "use fewer "
        "micro-batches",
        slots, kMaxSlots);
}

double sent_bytes(const Program& program, bool is_backward) {
  double bytes = 0;
  int slot = -1;
  for (const Instruction& at : program.instructions) {
    if (at.op != Op::send || at.is_backward != is_backward || at.microbatch != 0) continue;
    if (slot >= 0 && at.slot != slot) break;  // only the messages of a single slot are counted
    slot = at.slot;
    bytes += static_cast<double>(at.bytes);
  }
  return bytes;
}

double work_seconds(const StageTimes& times) {
  double seconds = 0;
  for (const auto* list : {&times.forward, &times.backward, &times.weight})
    for (const SlotTime& slot : *list) seconds += slot.seconds;
  return seconds;
}

}  // namespace

StepSimulator::StepSimulator(const Setup& setup)
    : setup_(setup),
      model_work_(std::make_shared<const ModelWork>(work_of(setup.model, setup.plan.sequence_length))),
      short_plan_(shortened(setup.plan)) {
  refuse_too_many_slots(setup.plan);
  const NodeGroup& group = setup.cluster.profile().groups.front();
  num_nodes_ =
      std::max(1.0, std::ceil(static_cast<double>(num_devices(setup.plan)) / group.devices_per_node));
  for (int p = 0; p < std::ssize(setup.plan.pipelines); ++p) add_pipeline(p);
}

void StepSimulator::add_pipeline(int number) {
  const Pipeline& pipeline = setup_.plan.pipelines[static_cast<std::size_t>(number)];
  const int num_stages = static_cast<int>(pipeline.stages.size());
  SimulatedPipeline simulated_pipeline;
  // Replicas with one sequence fewer wait for the other replicas.
  const Stage& first_stage = pipeline.stages.front();
  const int dp = data_parallel(first_stage, first_stage.chunks.front().runs.front().strategy);
  const auto share = [&](int size) { return static_cast<double>((size + dp - 1) / dp); };
  for (const int size : pipeline.microbatches)
    simulated_pipeline.sizes.push_back(share(size) / share(pipeline.microbatches.front()));
  const auto first_of = [&](int stage) {
    return setup_.map[VirtualDevice{pipeline.stages[static_cast<std::size_t>(stage)].devices.front()}];
  };
  for (int s = 0; s < num_stages; ++s) {
    simulated_pipeline.classes.push_back(class_of(number, s));
    simulated_pipeline.orders.push_back(
        order_of(setup_.plan.schedule, {s, num_stages, static_cast<int>(pipeline.microbatches.size()),
                                        static_cast<int>(pipeline.stages.front().chunks.size())}));
    simulated_pipeline.next_links.push_back(setup_.cluster.link(first_of(s), first_of((s + 1) % num_stages)));
    simulated_pipeline.previous_links.push_back(
        setup_.cluster.link(first_of(s), first_of((s + num_stages - 1) % num_stages)));
  }
  pipelines_.push_back(std::move(simulated_pipeline));
}

int StepSimulator::class_of(int pipeline_number, int stage_number) {
  const Pipeline& pipeline = short_plan_.pipelines[static_cast<std::size_t>(pipeline_number)];
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(stage_number)];
  const Device first = setup_.map[VirtualDevice{stage.devices.front()}];
  StageClass stage_class;
  stage_class.pattern = pattern_of(stage, setup_.model.is_custom());
  stage_class.block_patterns = block_patterns_of(stage, setup_.model);
  stage_class.has_first = stage.chunks.front().first_block() == 0;
  stage_class.has_last = stage.chunks.back().end_block() == setup_.plan.num_blocks;
  stage_class.device = slowest_of(stage, setup_.cluster, setup_.map, setup_.format.format);
  stage_class.place_in_domain = first.value % setup_.cluster.group_of(first).devices_per_domain;
  stage_class.width = static_cast<int>(stage.devices.size());
  stage_class.types = types_of(stage, setup_.cluster, setup_.map);
  if (stage_class.types.size() > 1) stage_class.device = first;  // each type is simulated below
  stage_class.pipeline = pipeline_number;
  const auto is_same_class = [&](const StageClass& existing) {
    const Cluster& cluster = setup_.cluster;
    return existing.has_first == stage_class.has_first && existing.has_last == stage_class.has_last &&
           existing.width == stage_class.width && existing.place_in_domain == stage_class.place_in_domain &&
           existing.pipeline == stage_class.pipeline &&
           &cluster.group_of(existing.device) == &cluster.group_of(stage_class.device) &&
           cluster.speed_of(existing.device) == cluster.speed_of(stage_class.device) &&
           existing.types == stage_class.types && existing.block_patterns == stage_class.block_patterns &&
           existing.pattern == stage_class.pattern;
  };
  const auto match = std::find_if(classes_.begin(), classes_.end(), is_same_class);
  if (match != classes_.end()) return static_cast<int>(match - classes_.begin());
  for (const Chunk& chunk : stage.chunks) stage_class.first_blocks.push_back(chunk.first_block());
  stage_class.order = order_of(setup_.plan.schedule, {stage_number, static_cast<int>(pipeline.stages.size()),
                                                      static_cast<int>(pipeline.microbatches.size()),
                                                      static_cast<int>(stage.chunks.size())});
  const Setup setup{short_plan_, setup_.model, setup_.cluster, setup_.map, setup_.software, setup_.format};
  stage_class.program = std::make_unique<PricedProgram>(
      setup, *model_work_, compile_without_buffers(short_plan_, setup_.model, stage.devices.front()),
      stage_class.device);
  // If a stage has replicas on several types of devices, the slowest type determines its speed.
  std::set<int> types;
  for (const int device : stage.devices) {
    if (stage_class.types.size() == 1) break;
    const Device physical = setup_.map[VirtualDevice{device}];
    if (types.insert(setup_.cluster.group_of(physical).type).second && types.size() > 1)
      stage_class.other_programs.push_back(std::make_unique<PricedProgram>(
          setup, *model_work_, compile_without_buffers(short_plan_, setup_.model, device), physical));
  }
  const LayerStrategy& first_strategy = stage.chunks.front().runs.front().strategy;
  const double copies =
      setup_.software.scatters_messages || first_strategy.sequence_parallel ? 1 : first_strategy.tp;
  stage_class.forward_bytes = sent_bytes(stage_class.program->program(), false) * copies;
  stage_class.backward_bytes = sent_bytes(stage_class.program->program(), true) * copies;
  classes_.push_back(std::move(stage_class));
  return static_cast<int>(classes_.size()) - 1;
}

StepTimes StepSimulator::simulate_times(const Constants& constants, bool stores_slots) const {
  StepTimes step;
  for (const StageClass& stage_class : classes_) {
    StageTimes times = simulate_lanes(*stage_class.program, stage_class.order, setup_.software, constants);
    for (const auto& other : stage_class.other_programs)
      if (StageTimes other_times = simulate_lanes(*other, stage_class.order, setup_.software, constants);
          work_seconds(other_times) > work_seconds(times))
        times = std::move(other_times);
    step.stages.push_back(std::move(times));
  }
  const LinkCost links(constants);
  for (const SimulatedPipeline& simulated_pipeline : pipelines_) {
    std::vector<PipelineStage> stages;
    for (std::size_t s = 0; s < simulated_pipeline.classes.size(); ++s) {
      const auto c = static_cast<std::size_t>(simulated_pipeline.classes[s]);
      stages.push_back(
          {&step.stages[c], &simulated_pipeline.orders[s],
           links.message_seconds(simulated_pipeline.next_links[s], classes_[c].forward_bytes),
           links.message_seconds(simulated_pipeline.previous_links[s], classes_[c].backward_bytes)});
    }
    step.pipelines.push_back(
        run_pipeline(stages, simulated_pipeline.sizes, setup_.software.messages, stores_slots));
    for (std::size_t s = 0; s < simulated_pipeline.classes.size(); ++s)
      step.gate = std::max(
          step.gate,
          step.pipelines.back().stage_ends[s] +
              step.stages[static_cast<std::size_t>(simulated_pipeline.classes[s])].before_gate.seconds);
  }
  double max_after_gate = 0;
  for (const StageTimes& stage : step.stages)
    max_after_gate = std::max(max_after_gate, stage.after_gate.seconds);
  step.end = step.gate + max_after_gate;
  return step;
}

double StepSimulator::seconds(const Constants& constants) const {
  return simulate_times(constants, false).end * (1 + constants.straggler_loss * std::log2(num_nodes_));
}

StepPrediction StepSimulator::run(const Constants& constants, bool stores_slots) const {
  StepTimes step_times = simulate_times(constants, stores_slots);
  StepPrediction step;
  step.seconds = step_times.end * (1 + constants.straggler_loss * std::log2(num_nodes_));
  int num_stages = 0;
  for (std::size_t p = 0; p < pipelines_.size(); ++p)
    for (std::size_t s = 0; s < pipelines_[p].classes.size(); ++s, ++num_stages) {
      const StageTimes& times = step_times.stages[static_cast<std::size_t>(pipelines_[p].classes[s])];
      StagePrediction stage{static_cast<int>(p), static_cast<int>(s), step_times.pipelines[p].splits[s], {}};
      stage.split += times.before_gate.split;
      stage.split += times.after_gate.split;
      stage.split.bubble += step.seconds - stage.split.total();
      stage.memory = stage_memory(setup_, static_cast<int>(p), static_cast<int>(s), constants);
      step.memory = std::max(step.memory, stage.memory.total);
      step.split += stage.split;
      step.stages.push_back(stage);
    }
  step.split = step.split * (1.0 / num_stages);
  const double tokens =
      static_cast<double>(setup_.plan.batch) * static_cast<double>(setup_.plan.sequence_length);
  step.tokens_per_second = tokens / step.seconds;
  double peak = 0;
  for (std::size_t p = 0; p < pipelines_.size(); ++p)
    for (std::size_t s = 0; s < pipelines_[p].classes.size(); ++s) {
      const StageClass& stage_class = classes_[static_cast<std::size_t>(pipelines_[p].classes[s])];
      const DeviceType& type = setup_.cluster.type_of(stage_class.device);
      const double format_peak = peak_flops(type, setup_.format.format);
      peak += (format_peak > 0 ? format_peak : std::max({type.peak.bf16, type.peak.fp16, type.peak.fp32})) *
              stage_class.width;
    }
  step.mfu = model_flops_per_token(setup_.model, setup_.plan.sequence_length) * step.tokens_per_second / peak;
  for (const SimulatedPipeline& simulated_pipeline : pipelines_)
    if (stores_slots) step.orders.push_back(simulated_pipeline.orders);
  step.pipelines = std::move(step_times.pipelines);
  return step;
}

}  // namespace optimus
