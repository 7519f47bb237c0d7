// Finds the best pipeline for a number of nodes, which becomes a template (recovery/templates.h).
#pragma once

#include <optional>
#include <vector>

#include "search/candidate.h"

namespace optimus {

// The best pipeline on `nodes` nodes for one micro-batch size.
struct PipelineTemplate {
  int nodes = 0;
  Candidate candidate;              // pp and tp; one replica
  std::vector<StageLayers> layers;  // [stage]
  Pipeline pipeline;                // devices numbered from 0, no micro-batches
  double first_seconds = 0;  // seconds of the first micro-batch, forward and backward through all stages
  double next_seconds = 0;   // seconds that each further micro-batch adds: the time of the slowest stage
};

// Tries several tensor-parallel sizes and distributes layers over stages by cost. Returns nullopt if the
// model does not fit.
std::optional<PipelineTemplate> best_pipeline_template(const Demand& demand, int nodes, int devices_per_node,
                                                       int microbatch);

}  // namespace optimus
