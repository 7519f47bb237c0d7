// Converts a plan to the grid that other trainers support: tp x cp x dp devices in each of pp equal stages,
// with one strategy for all layers. Used only by the exporters.
#pragma once

#include <string>
#include <vector>

#include "base/box.h"
#include "plan/exported_plan.h"
#include "plan/plan.h"

namespace optimus {

struct PlanGrid {
  int pp = 1, dp = 1, chunks = 1;  // dp is the sum over all pipelines
  LayerStrategy strategy;          // for all layers; the recompute mode is the strongest of any layer
  int shards = 1;                  // number of devices that share one copy of the state
  // With full recompute: the largest number of recomputed layers in a chunk; 0 if all layers are recomputed.
  int recomputed_layers = 0;
  std::vector<Span> parts;  // blocks of each chunk in model order, at index chunk * pp + stage
  int microbatch = 1;       // sequences per data-parallel rank
  std::int64_t num_microbatches = 1;
  int devices = 1;
  // Whether all chunks have the same number of layers, so that the other trainer needs no explicit layout.
  bool is_even = true;
  std::int64_t layers_of(std::size_t part, int num_blocks) const;
};

// Throws a UserError that names the trainer if the plan cannot be converted to such a grid. Adds a note for
// each property that differs between layers or stages and is made uniform.
PlanGrid grid_of(const Plan& plan, Trainer trainer, std::vector<std::string>& notes);

// The trainer's usual spelling, such as "Megatron-LM".
std::string display_name(Trainer trainer);

// The number of nodes and of devices per node. If `devices_per_node` does not divide `devices`, fewer
// devices per node are used.
struct NodeShape {
  int nodes = 1, devices = 1;
};
NodeShape node_shape(int devices, int devices_per_node, std::vector<std::string>& notes);

// Encloses the word in single quotes for a shell.
std::string shell_quoted(const std::string& word);

// Comment lines for the top of a generated file: the purpose of the file, the plan, and the notes.
std::string export_header(const Plan& plan, const std::string& title, const std::vector<std::string>& notes);

// Each exporter adds the files for its trainer to `exported`.
void add_megatron_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                        ExportedPlan& exported);
void add_deepspeed_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                         ExportedPlan& exported);
void add_torchtitan_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                          ExportedPlan& exported);

}  // namespace optimus
