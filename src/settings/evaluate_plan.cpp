// Implements evaluate_plan.h: checks the requested grid and builds a uniform plan from it.
#include "settings/evaluate_plan.h"

#include <algorithm>

#include "base/error.h"
#include "plan/plan_json.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr std::int64_t kMaxEvalDevices = 4096;

bool has_grid(const EvalLayout& layout) {
  return layout.tp || layout.pp || layout.cp || layout.dp || layout.zero;
}

void check_option_ranges(const EvalLayout& layout) {
  const auto check = [](const char* name, const std::optional<std::int64_t>& value, std::int64_t min_value,
                        std::int64_t max_value) {
    if (value && (*value < min_value || *value > max_value))
      throw UsageError("--{}: expected {} to {}, got {}", name, min_value, max_value, *value);
  };
  check("devices", layout.devices, 1, kMaxEvalDevices), check("tp", layout.tp, 1, kMaxEvalDevices);
  check("pp", layout.pp, 1, kMaxEvalDevices), check("cp", layout.cp, 1, kMaxEvalDevices);
  check("dp", layout.dp, 1, kMaxEvalDevices), check("zero", layout.zero, 0, 3);
  if (!layout.plan.empty() && has_grid(layout))
    throw UsageError("--plan cannot be combined with --tp, --pp, --cp, --dp or --zero");
}

// The product of tp, pp and cp in the requested grid.
std::int64_t model_parallel_size(const EvalLayout& layout) {
  return layout.tp.value_or(1) * layout.pp.value_or(1) * layout.cp.value_or(1);
}

Plan grid_plan(const EvalLayout& layout, const ModelSpec& model, const EvalWork& work) {
  const std::int64_t dp = num_devices(layout) / model_parallel_size(layout), pp = layout.pp.value_or(1);
  // By default, there are enough micro-batches to keep every stage busy, and each has enough tokens for
  // efficient GEMMs.
  const std::int64_t default_microbatch =
      std::max<std::int64_t>(1, work.tokens_per_pass / work.sequence_length);
  const std::int64_t batch = work.batch.value_or(default_microbatch * dp * pp);
  UniformPlan shape{.pp = static_cast<int>(pp),
                    .dp = static_cast<int>(dp),
                    .microbatch = static_cast<int>(std::max<std::int64_t>(1, batch / (dp * pp))),
                    .batch = batch,
                    .sequence_length = work.sequence_length,
                    .precision = work.precision.value_or(Precision::fp32)};
  shape.strategy.tp = static_cast<int>(layout.tp.value_or(1));
  shape.strategy.cp = static_cast<int>(layout.cp.value_or(1));
  shape.strategy.zero = static_cast<int>(layout.zero.value_or(0));
  shape.strategy.recompute = RecomputeMode::full;
  return uniform_plan(model, shape);
}

}  // namespace

int num_devices(const EvalLayout& layout) {
  check_option_ranges(layout);
  if (!layout.plan.empty()) {
    const int num_planned = num_devices(read_plan(layout.plan));
    if (layout.devices && *layout.devices != num_planned)
      throw UsageError("--devices {} does not match {}, which is a plan for {} devices", *layout.devices,
                       layout.plan.string(), num_planned);
    return num_planned;
  }
  const std::int64_t devices_per_replica = model_parallel_size(layout);
  if (devices_per_replica > kMaxEvalDevices)
    throw UsageError("--tp, --pp and --cp require {} devices, which exceeds the limit of {}",
                     devices_per_replica, kMaxEvalDevices);
  const std::int64_t devices = layout.devices.value_or(devices_per_replica * layout.dp.value_or(1));
  if (devices > kMaxEvalDevices || devices % devices_per_replica != 0 ||
      devices / devices_per_replica != layout.dp.value_or(devices / devices_per_replica))
    throw UsageError("--devices {}: does not equal tp {} x pp {} x cp {} x dp {}", devices,
                     layout.tp.value_or(1), layout.pp.value_or(1), layout.cp.value_or(1),
                     layout.dp ? std::to_string(*layout.dp) : "any");
  return static_cast<int>(devices);
}

Plan evaluation_plan(const EvalLayout& layout, const ModelSpec& model, const EvalWork& work) {
  if (layout.plan.empty()) {
    const Plan plan = grid_plan(layout, model, work);
    validate(plan, model, "--devices, --tp, --pp, --cp, --dp and --seq");
    return plan;
  }
  Plan plan = read_plan(layout.plan);
  if (work.batch && *work.batch != plan.batch)
    throw UsageError("--batch {} does not match {}, which has {} sequences per step", *work.batch,
                     layout.plan.string(), plan.batch);
  plan.sequence_length = work.sequence_length;
  if (work.precision) {
    plan.precision = *work.precision;
    plan.accumulators = plan.precision == Precision::fp64 ? Precision::fp64 : Precision::fp32;
  }
  validate(plan, model, layout.plan.string());
  return plan;
}

}  // namespace optimus
