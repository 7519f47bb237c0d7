// Implements software.h.
#include "cli/software.h"

#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cluster/open.h"
#include "cost/history_json.h"

namespace optimus {

const Software& software_named(const std::string& name) {
  if (name.empty()) return optimus_software();
  if (const Software* found = find_software(name)) return *found;
  std::vector<std::string> names;
  for (const Software& known : all_software()) names.emplace_back(known.name);
  throw UserError("--software: {} is not known{}; known trainers: {}", in_quotes(name),
                  did_you_mean(name, names), join(names, ", "));
}

PredictionInputs prediction_inputs(const std::string& cluster, const std::string& history,
                                   const Constants& constants) {
  Cluster known = open_cluster(cluster);
  const Constants usual = is_measured_cluster_name(cluster) ? with_measured_links(constants) : constants;
  if (history.empty()) return {std::move(known), usual, "", {}};
  Corrected by_runs = corrected(known.profile(), usual, residuals(read_history(history)));
  std::string words = text(by_runs) + "\n";
  return {Cluster(std::move(by_runs.profile), cluster), by_runs.constants, std::move(words),
          std::move(by_runs.used)};
}

}  // namespace optimus
