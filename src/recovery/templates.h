// Pipeline templates (as Oobleck): for every number of nodes that one pipeline may have, the best pipeline of so many, worked out before
// anything fails. A plan for any number of survivors is then put together from them in microseconds, and leaves no node idle.
//
//   const PipelineTemplates templates = PipelineTemplates::build(demand, {.devices_per_node = 1, .most_nodes = 8, .failures = 1});
//   const Plan plan = templates.plan_for(7);
//
// Every pipeline holds the whole model, so a plan of p pipelines survives p - 1 failures wherever they are. N nodes are dealt to p
// pipelines whose sizes differ by one at most; docs/resilience.md proves that this works for every N from the smallest on. Equal
// pipelines stand in the plan as one of several replicas; sequences are dealt by speed, in whole micro-batches of about one size.
// Immutable, so any thread may ask.
#pragma once

#include <map>
#include <vector>

#include "search/candidate.h"

namespace optimus {

// The best pipeline of `nodes` nodes for micro-batches of one size.
struct PipelineTemplate {
  int nodes = 0;
  Candidate candidate;              // pp and tp, one replica
  std::vector<StageLayers> layers;  // [stage]
  Pipeline pipeline;                // devices from 0, no micro-batches
  double first_seconds = 0;         // of the first micro-batch, through all stages and back
  double next_seconds = 0;          // of each that follows: the slowest stage
};

struct TemplateOptions {
  int devices_per_node = 1;
  int most_nodes = 8;  // that there may ever be
  int failures = 1;    // to survive: pipelines at least, where there are nodes enough, less one
};

class PipelineTemplates {
 public:
  // The demand's cluster says what nodes are like; how many it has does not matter. Constraints count as far as they speak of memory,
  // micro-batches, recomputing and tensor parallelism. Throws UserError when no number of nodes up to most_nodes holds the model,
  // and for models of modules, which have no costs to go by.
  static PipelineTemplates build(const Demand& demand, const TemplateOptions& options);

  int smallest() const { return smallest_; }  // nodes that hold the model
  int most_nodes() const { return static_cast<int>(choices_.size()) - 1; }
  // Throws UserError for fewer than the smallest. More than there may ever be count as the most.
  Plan plan_for(int nodes) const;
  int num_pipelines(int nodes) const { return choice_of(nodes).pipelines; }
  // The plan survives so many failures: one less than it has pipelines.
  int can_lose(int nodes) const { return num_pipelines(nodes) - 1; }
  double seconds(int nodes) const { return choice_of(nodes).seconds; }  // of a step, as the simulator has it
  int num_used(int nodes) const { return choice_of(nodes).nodes; }

 private:
  struct Choice {
    int nodes = 0;       // in use; 0: none
    int pipelines = 0;   // equal ones counted each
    int microbatch = 1;  // sequences at a time of a replica, at most
    double seconds = 0;
  };
  // Some pipelines of one template, and the sequences that they have together.
  struct Share {
    const PipelineTemplate* made = nullptr;
    int replicas = 0;
    std::int64_t sequences = 0;
  };
  void make_templates(const Demand& demand, const TemplateOptions& options);
  void choose_for(int nodes, const Demand& demand, const TemplateOptions& options);
  std::vector<Choice> possible(int nodes, int least_pipelines) const;
  const PipelineTemplate* find(int microbatch, int nodes) const;
  std::vector<Share> shares(const Choice& choice) const;
  void deal(std::vector<Share>& shares) const;  // the batch, by speed
  double estimate(const std::vector<Share>& shares) const;
  Plan assemble(const Choice& choice) const;
  const Choice& choice_of(int nodes) const;

  Plan blank_;  // everything but pipelines
  int devices_per_node_ = 1, smallest_ = 0;
  std::map<int, std::map<int, PipelineTemplate>> made_;  // [sequences of a micro-batch][nodes]
  std::vector<Choice> choices_;                          // [nodes]
};

}  // namespace optimus
