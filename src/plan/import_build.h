// What both importers share: the plan of a grid whose stages may hold unequal numbers of layers. Used by import alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/import.h"
#include "plan/plan.h"

namespace optimus {

struct ImportedGrid {
  UniformPlan shape;
  Precision accumulators = Precision::fp32;
  Fp8Plan fp8;
  std::vector<std::int64_t> layers;  // of each part, chunk * pp + stage; empty: dealt evenly
  int recomputed_layers = 0;         // with full: only the first so many of each part; 0: all
  bool has_stages_inside = false;    // ranks count stages before data parts
  std::int64_t devices = 1;
};

// Sets shape.dp from the devices and builds the plan. Throws UserError, naming the source, for what does not fit together.
Plan build_imported(const ImportedGrid& grid, const ModelSpec& model, const std::string& source);

void import_megatron(std::string_view text, const std::string& source, const ImportRequest& request,
                     ImportedPlan& imported);
void import_deepspeed(std::string_view text, const std::string& source, const ImportRequest& request,
                      ImportedPlan& imported);

// "Et*2|(t|)*3L" as the layers of each part. Throws UserError.
std::vector<std::int64_t> parse_layout(const std::string& layout, const std::string& where);

}  // namespace optimus
