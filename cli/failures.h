// --failures, as simulate has it: a trace of machines that come and go, and what policies get done on it.
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
  std::string trace;  // a file, or periodic:NODES,EVERY,AWAY,LENGTH; empty: none is asked for
  std::string policies = "never";
  int devices_per_node = 1;
  std::optional<int> repeats;
  int failures = 1;
  Seconds restart{60};
  std::optional<Seconds> node_start;
  std::optional<std::int64_t> batch, sequence_length;
  std::string precision = "bf16";
  std::optional<double> price;  // dollars of a device and hour
  Path throughput, halts, recovery_costs, learned;
};
void declare(OptionTable& table, FailureOptions& options);

// One plan that is kept: --policy never alone. Throws UserError.
int replay_plan(Console& console, const FailureOptions& options, const Plan& plan, double step_seconds);
// Any policies, with templates for the model on the cluster's nodes, or with the speeds of a table. Throws UserError and UsageError.
int replay_policies(Console& console, const FailureOptions& options, ModelOptions model,
                    const std::string& cluster, const Constants& constants);

}  // namespace optimus
