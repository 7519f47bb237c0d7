// The best pipeline of some nodes: what templates are made of. Used by templates.cpp alone.
#pragma once

#include <optional>

#include "recovery/templates.h"

namespace optimus {

// Nothing where the model does not fit. Several tensor-parallel widths are tried; stages are cut by what they take.
std::optional<PipelineTemplate> best_cut(const Demand& demand, int nodes, int devices_per_node,
                                         int microbatch);

}  // namespace optimus
