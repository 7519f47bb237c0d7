// PlannerRequest: the properties of a training that the planner needs. planner_request() builds it from the
// options, and its methods return modified copies. A plain value, except that it refers to the model.
//
// Read next: settings/choose_plan.h, which chooses a plan for a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/phase.h"
#include "plan/plan.h"
#include "search/demand.h"
#include "settings/device_facts.h"
#include "settings/options.h"

namespace optimus {

// A mean time between failures that is so short that the planner always prefers redundant copies of the
// state. Used for runs that must tolerate losses.
inline constexpr Seconds kShortMtbf{600};

struct PlannerRequest {
  const ModelSpec& model;  // must outlive the request
  DeviceFacts device{};
  int num_devices = 1;
  std::int64_t batch = 0, sequence_length = 0;  // 0: not known yet; no plan can be chosen
  Precision precision = Precision::fp32;
  Constraints layout{};                      // as given by the user, not checked
  std::optional<std::int64_t> microbatch{};  // empty: any
  std::optional<std::string> recompute{};    // mode, not checked; empty: any
  Failures failures{};
  bool prefers_copies = true;    // prefer plans with redundant copies of the state
  std::string history = "none";  // past runs that correct the costs (run_history.h)

  PlannerRequest for_devices(int count) const;
  // The micro-batch size, if given, is limited to the batch size of the phase.
  PlannerRequest for_phase(const Phase& phase) const;
  // Uses the batch size, sequence length and precision of a running plan.
  PlannerRequest with_shape_of(const Plan& plan) const;
  PlannerRequest with_mtbf(Seconds mtbf) const;
};

// The precision must have been resolved. Throws UserError if the precision or the save rule is invalid.
PlannerRequest planner_request(const TrainOptions& options, const ModelSpec& model,
                               const DeviceFacts& device);

}  // namespace optimus
