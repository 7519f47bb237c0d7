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
  if (const Software* software = find_software(name)) return *software;
  std::vector<std::string> names;
  for (const Software& known_software : all_software()) names.emplace_back(known_software.name);
  throw UserError("--software: unknown trainer {}{}; known trainers: {}", in_quotes(name),
                  did_you_mean(name, names), join(names, ", "));
}

PredictionInputs prediction_inputs(const std::string& cluster, const std::string& history,
                                   const Constants& constants) {
  Cluster known_cluster = open_cluster(cluster);
  const Constants default_constants =
      is_measured_cluster_name(cluster) ? with_measured_links(constants) : constants;
  if (history.empty()) return {std::move(known_cluster), default_constants, "", {}};
  CorrectedInputs corrected_inputs =
      correct_inputs(known_cluster.profile(), default_constants, residuals(read_history(history)));
  std::string description = text(corrected_inputs) + "\n";
  return {Cluster(std::move(corrected_inputs.profile), cluster), corrected_inputs.constants,
          std::move(description), std::move(corrected_inputs.applied_residuals)};
}

}  // namespace optimus
