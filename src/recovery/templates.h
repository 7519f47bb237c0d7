// Pipeline templates (as in Oobleck): the best pipeline for each number of nodes that a pipeline may use,
// computed before anything fails. A plan for any number of surviving nodes is then assembled in microseconds
// and leaves no node idle.
//
//   const PipelineTemplates templates = value_or_throw(
//       PipelineTemplates::build(demand, {.devices_per_node = 1, .max_nodes = 8, .failures = 1}));
//   const Plan plan = templates.plan_for(7);
//
// Every pipeline holds the whole model, so a plan with p pipelines survives any p - 1 node failures. N nodes
// are distributed over p pipelines whose sizes differ by at most one. docs/understand/recovery.md proves that
// this is possible for every N >= smallest(). Pipelines of equal size appear in the plan as one pipeline with
// several replicas. Sequences are distributed by speed, in micro-batches of nearly equal size. Immutable and
// safe for concurrent use.
#pragma once

#include <map>
#include <vector>

#include "base/error.h"
#include "recovery/template_cut.h"
#include "search/candidate.h"

namespace optimus {

struct TemplateOptions {
  int devices_per_node = 1;
  int max_nodes = 8;  // largest number of nodes that can occur
  // Number of node failures that plans should survive. A plan has at least `failures` + 1 pipelines if there
  // are enough nodes.
  int failures = 1;
};

class PipelineTemplates {
 public:
  // Computes all templates. The cluster of `demand` describes the type of the nodes; its size is ignored.
  // Only the constraints on memory, micro-batches, recomputation and tensor parallelism apply. Infeasible if
  // the model does not fit on max_nodes nodes, or if it is a custom model, because the cost model does not
  // support those.
  static Feasible<PipelineTemplates> build(const Demand& demand, const TemplateOptions& options);

  int smallest() const { return min_nodes_; }  // smallest number of nodes on which the model fits
  int max_nodes() const { return static_cast<int>(choices_.size()) - 1; }
  // Throws UserError if there are fewer nodes than smallest(). If there are more than max_nodes(), only
  // max_nodes() of them are used.
  Plan plan_for(int nodes) const;
  int num_pipelines(int nodes) const { return choice_of(nodes).pipelines; }
  // The number of failures that the plan survives: one less than its number of pipelines.
  int num_tolerated_losses(int nodes) const { return num_pipelines(nodes) - 1; }
  double seconds(int nodes) const { return choice_of(nodes).seconds; }  // simulated step time
  int num_used_nodes(int nodes) const { return choice_of(nodes).nodes; }

 private:
  struct Choice {
    int nodes = 0;       // number of nodes in use; 0: no plan
    int pipelines = 0;   // number of pipelines; equal pipelines count separately
    int microbatch = 1;  // largest number of sequences in a replica's micro-batch
    double seconds = 0;
  };
  // The pipelines that use one template, and the number of sequences that they process together in a step.
  struct Share {
    const PipelineTemplate* pipeline_template = nullptr;
    int replicas = 0;
    std::int64_t sequences = 0;
  };
  // Returns false if the model does not fit on max_nodes nodes.
  bool make_templates(const Demand& demand, const TemplateOptions& options);
  void choose_for(int nodes, const Demand& demand, const TemplateOptions& options);
  std::vector<Choice> feasible_choices(int nodes, int min_pipelines) const;
  const PipelineTemplate* find(int microbatch, int nodes) const;
  std::vector<Share> shares(const Choice& choice) const;
  void distribute_batch(std::vector<Share>& shares) const;  // distributes the batch by speed
  double estimate(const std::vector<Share>& shares) const;
  Plan assemble(const Choice& choice) const;
  const Choice& choice_of(int nodes) const;

  Plan base_plan_;  // everything except the pipelines
  int devices_per_node_ = 1, min_nodes_ = 0;
  std::map<int, std::map<int, PipelineTemplate>> templates_by_size_;  // [sequences per micro-batch][nodes]
  std::vector<Choice> choices_;                                       // [nodes]
};

}  // namespace optimus
