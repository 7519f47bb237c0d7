// How fast a training is on so many nodes, for replays of failures (cli/failures.h): from templates of plans on a cluster, or from a
// published table.
#pragma once

#include "cli/failures.h"
#include "cluster/cluster.h"
#include "trials/published.h"
#include "trials/replay.h"

namespace optimus {

constexpr Bytes kLargestTrace{std::int64_t{64} << 20};

// What every policy is told; halts differ.
struct Speeds {
  Throughput throughput;
  double batch = 1, ready_seconds = 0;
  int fewest_nodes = 1;
  double parameters = 0, tokens = 1;              // tokens of a sample
  std::optional<double> node_bytes_per_second{};  // that a node receives from others; none: nobody says
  std::optional<double> dollars_per_second{};     // of the whole cluster
  std::optional<PublishedTables> tables;
  std::string model, words;
};

Halts halts_for(const Speeds& speeds, System system);

// Throw UserError and UsageError.
Speeds table_speeds(const FailureOptions& options, const std::string& model);
Speeds template_speeds(const FailureOptions& options, ModelOptions named, const std::string& cluster_name,
                       const Constants& constants, const AvailabilityTrace& trace);

// --recovery-costs; what it does not name is usual, and links are as they are said to be.
RecoveryCosts recovery_costs(const FailureOptions& options, std::optional<double> link_bytes_per_second);

// Of all devices of the cluster: --price, else what its types say; nothing where some type says nothing.
std::optional<double> dollars_per_second(const FailureOptions& options, const Cluster& cluster);

}  // namespace optimus
