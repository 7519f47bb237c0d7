// Implements simulate --failures, which replays a trace of machine failures and reports the result of each
// policy.
#pragma once

#include <optional>
#include <string>

#include "base/options.h"
#include "base/units.h"
#include "cli/command.h"
#include "cost/constants.h"
#include "model/options.h"
#include "plan/plan.h"

namespace optimus {

struct FailureOptions {
  std::string trace;  // a file, or periodic:NODES,INTERVAL,OUTAGE,DURATION; empty if no replay is requested
  std::string policies = "never";
  int devices_per_node = 1;
  std::optional<int> repeats;
  int failures = 1;
  Seconds restart{60};
  std::optional<Seconds> node_start;
  std::optional<std::int64_t> batch, sequence_length;
  std::string precision = "bf16";
  std::optional<double> price;  // dollars per device and hour
  Path throughput, reconfiguration, recovery_costs, learned;
};
void declare(OptionTable& table, FailureOptions& options);

// Replays one plan that never changes. Only valid with --policy never. Throws UserError.
int replay_plan(Console& console, const FailureOptions& options, const Plan& plan, double step_seconds);
// Replays any policies, using plan templates for the model on the cluster's nodes or the speeds in a table.
// Throws UserError and UsageError.
int replay_policies(Console& console, const FailureOptions& options, ModelOptions model,
                    const std::string& cluster, const Constants& constants);

}  // namespace optimus
