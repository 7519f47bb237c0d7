// Published figures of Oobleck, Varuna and Bamboo, as tables: how quickly each trains a model on how many nodes, and what its changes
// cost. Comma-separated, with a line of column names:
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
  Halts halts;
  double batch = 1;
};

// What the systems' changes would cost a model of so many parameters, between and beyond the published ones in proportion.
Halts halts_of(System system, double parameters);
// Of the models of the published tables; 0 for others.
double published_parameters(const std::string& model);

class PublishedTables {
 public:
  // Throws UserError with the file and the line: a number that is none, nodes with a gap, a system or model without costs.
  static PublishedTables parse(std::string_view throughput, std::string_view costs,
                               const std::string& throughput_source, const std::string& costs_source);

  std::vector<std::string> models() const;  // in the order of the table
  // Throws UserError when there is none, with those there are.
  const PublishedSystem& of(System system, const std::string& model) const;

 private:
  std::map<std::pair<std::string, std::string>, PublishedSystem> systems_;
  std::vector<std::string> models_;
};

}  // namespace optimus
