// Determines the training speed for each number of nodes, for replays of failures (cli/failures.h). The
// speeds come from plan templates on a cluster or from a published table.
#pragma once

#include "cli/failures.h"
#include "cluster/cluster.h"
#include "trials/published.h"
#include "trials/replay.h"

namespace optimus {

constexpr Bytes kMaxTraceBytes{std::int64_t{64} << 20};

// The inputs of a replay that all policies share. Only the reconfiguration costs differ between policies.
struct ReplaySpeeds {
  Throughput throughput;
  double batch = 1, ready_seconds = 0;
  int min_nodes = 1;
  double parameters = 0, tokens = 1;  // tokens per sample
  // Bytes per second that a node receives from other nodes; empty if unknown.
  std::optional<double> node_bytes_per_second{};
  std::optional<double> dollars_per_second{};  // of the whole cluster
  std::optional<PublishedTables> tables;
  std::string model, description;
};

ReconfigurationCosts reconfiguration_costs_for(const ReplaySpeeds& speeds, System system);

// Both functions throw UserError and UsageError.
ReplaySpeeds speeds_from_table(const FailureOptions& options, const std::string& model);
ReplaySpeeds speeds_from_templates(const FailureOptions& options, ModelOptions model_options,
                                   const std::string& cluster_name, const Constants& constants,
                                   const AvailabilityTrace& trace);

// Reads --recovery-costs. Costs that the file does not contain keep their defaults, and links have the
// given speed.
RecoveryCosts recovery_costs(const FailureOptions& options, std::optional<double> link_bytes_per_second);

// Returns the price of all devices in the cluster, in dollars per second. It is computed from --price if that
// is set, otherwise from the prices of the device types. Empty if a type has no price.
std::optional<double> dollars_per_second(const FailureOptions& options, const Cluster& cluster);

}  // namespace optimus
