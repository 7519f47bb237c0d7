// PublishedTables: published results of Oobleck, Varuna and Bamboo, read from CSV files with a header line.
// They contain the throughput of each system by model and number of nodes, and the cost of reconfigurations:
//
//   system,model,nodes,samples_per_s
//   system,model,reconfigure_s,checkpoint_s,checkpoint_every_steps,min_nodes,notes,global_batch
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trials/replay.h"

namespace optimus {

struct PublishedSystem {
  Throughput throughput;
  ReconfigurationCosts reconfiguration;
  double batch = 1;
};

// Returns the reconfiguration costs for a model with `parameters` parameters. They are interpolated between
// the published model sizes and proportional to the size above the largest.
ReconfigurationCosts reconfiguration_costs_of(System system, double parameters);
// The number of parameters of a model in the published tables, or 0 for other models.
double published_parameters(const std::string& model);

class PublishedTables {
 public:
  // Throws UserError with the file and line if a number is invalid, a number of nodes is missing, or a system
  // or model has no costs.
  static PublishedTables parse(std::string_view throughput, std::string_view costs,
                               const std::string& throughput_source, const std::string& costs_source);

  std::vector<std::string> models() const;  // in the order of the throughput table
  // Throws a UserError that lists the available models if there is no such entry.
  const PublishedSystem& of(System system, const std::string& model) const;

 private:
  std::map<std::pair<std::string, std::string>, PublishedSystem> systems_;
  std::vector<std::string> models_;
};

}  // namespace optimus
