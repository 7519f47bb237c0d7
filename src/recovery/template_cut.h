// The best pipeline for a number of nodes, from which templates are made. Used only by templates.cpp.
#pragma once

#include <optional>

#include "recovery/templates.h"

namespace optimus {

// Tries several tensor-parallel sizes and distributes layers over stages by their cost. Returns nothing if
// the model does not fit.
std::optional<PipelineTemplate> best_pipeline_template(const Demand& demand, int nodes, int devices_per_node,
                                                       int microbatch);

}  // namespace optimus
