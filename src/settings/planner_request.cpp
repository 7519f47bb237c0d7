// Implements planner_request.h.
#include "settings/planner_request.h"

#include <algorithm>

#include "settings/save_rule.h"

namespace optimus {

PlannerRequest PlannerRequest::for_devices(int count) const {
  PlannerRequest result = *this;
  result.num_devices = count;
  return result;
}

PlannerRequest PlannerRequest::for_phase(const Phase& phase) const {
  PlannerRequest result = *this;
  result.batch = phase.batch, result.sequence_length = phase.sequence_length;
  if (microbatch) result.microbatch = std::min(*microbatch, phase.batch);
  return result;
}

PlannerRequest PlannerRequest::with_shape_of(const Plan& plan) const {
  PlannerRequest result = *this;
  result.batch = plan.batch, result.sequence_length = plan.sequence_length;
  result.precision = plan.precision;
  return result;
}

PlannerRequest PlannerRequest::with_mtbf(Seconds mtbf) const {
  PlannerRequest result = *this;
  result.failures.mtbf = mtbf;
  return result;
}

PlannerRequest planner_request(const TrainOptions& options, const ModelSpec& model,
                               const DeviceFacts& device) {
  PlannerRequest request{.model = model, .device = device};
  request.num_devices = static_cast<int>(options.devices.value_or(1));
  request.batch = options.batch.value_or(0), request.sequence_length = options.sequence_length.value_or(0);
  request.precision = parse_precision(options.precision, "--precision");
  request.layout = options.layout, request.microbatch = options.microbatch;
  if (options.is_recompute_explicit) request.recompute = options.recompute;
  request.failures = options.failures;
  if (const SaveRule rule = parse_save_rule(options.save_every, "--save-every"); rule.period.value > 0)
    request.failures.checkpoint_every = rule.period;
  request.prefers_copies = !options.is_static, request.history = options.history;
  return request;
}

}  // namespace optimus
