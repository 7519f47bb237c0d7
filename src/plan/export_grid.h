// A plan seen as the grid that other trainers know: tp x cp x dp devices in each of pp equal stages, one strategy for all layers.
// Used by the exporters alone.
#pragma once

#include <string>
#include <vector>

#include "base/box.h"
#include "plan/export.h"
#include "plan/plan.h"

namespace optimus {

struct PlanGrid {
  int pp = 1, dp = 1, chunks = 1;  // dp: over all pipelines
  LayerStrategy strategy;          // of all layers; recompute is the strongest that some layer has
  int shards = 1;                  // devices that share one copy of the state
  // With full: the most layers of a chunk that are computed again, or 0 for all of them.
  int recomputed_layers = 0;
  std::vector<Span> parts;  // the blocks of each chunk, in the order of the model: chunk * pp + stage
  int microbatch = 1;       // sequences of a data-parallel part
  std::int64_t num_microbatches = 1;
  int devices = 1;
  // Whether layers divide evenly over the parts, so that no trainer needs to be told.
  bool is_even = true;
  std::int64_t layers_of(std::size_t part, int num_blocks) const;
};

// Throws UserError for what is no such grid, naming the trainer; adds to `notes` what was made equal to be one.
PlanGrid grid_of(const Plan& plan, Trainer trainer, std::vector<std::string>& notes);

// "Megatron-LM": as people write it.
std::string shown_name(Trainer trainer);

// Nodes and devices a node that make up all devices; fewer devices a node than asked when they do not divide.
struct NodeShape {
  int nodes = 1, devices = 1;
};
NodeShape node_shape(int devices, int devices_per_node, std::vector<std::string>& notes);

// In single quotes, for a shell.
std::string shell_quoted(const std::string& word);

// Comment lines: what this file is, of which plan, and the notes.
std::string export_header(const Plan& plan, const std::string& what, const std::vector<std::string>& notes);

// The exporters, each in a file of its own.
void add_megatron_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                        ExportedPlan& exported);
void add_deepspeed_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                         ExportedPlan& exported);
void add_torchtitan_files(const Plan& plan, const ModelSpec& model, const ExportSettings& settings,
                          ExportedPlan& exported);

}  // namespace optimus
