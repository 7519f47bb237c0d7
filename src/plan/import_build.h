// Shared by both importers: builds the plan of a grid whose stages may have unequal numbers of layers. Used
// only by the importers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/imported_plan.h"
#include "plan/plan.h"

namespace optimus {

struct ImportedGrid {
  UniformPlan shape;
  Precision accumulators = Precision::fp32;
  Fp8Plan fp8;
  // Number of layers in each chunk, at index chunk * pp + stage. If empty, the layers are distributed evenly.
  std::vector<std::int64_t> layers;
  // With full recompute: how many of its first layers each chunk recomputes. 0 means all of them.
  int recomputed_layers = 0;
  // In the order of ranks, pipeline stages vary faster than data-parallel ranks.
  bool stages_vary_before_replicas = false;
  std::int64_t devices = 1;
};

// Derives shape.dp from the number of devices and builds the plan. Throws a UserError that names the source
// if the values are inconsistent.
Plan build_imported(const ImportedGrid& grid, const ModelSpec& model, const std::string& source);

void import_megatron(std::string_view text, const std::string& source, const ImportRequest& request,
                     ImportedPlan& imported);
void import_deepspeed(std::string_view text, const std::string& source, const ImportRequest& request,
                      ImportedPlan& imported);

// Parses a layout such as "Et*2|(t|)*3L" into the number of layers in each chunk. Throws UserError.
std::vector<std::int64_t> parse_layout(const std::string& layout, const std::string& location);

}  // namespace optimus
