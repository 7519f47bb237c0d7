// Benchmarks pipeline templates: the time to build them, and to assemble a plan from them.
#include <fmt/format.h>

#include <chrono>

#include "cluster/standard.h"
#include "model/presets.h"
#include "recovery/templates.h"

namespace optimus {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct TemplateCase {
  const char *model, *cluster;
  int devices_per_node, nodes;
  std::int64_t batch, sequence_length;
};

void show_templates(const TemplateCase& one) {
  const ModelSpec model = *find_preset(one.model);
  const Cluster cluster(standard_cluster(one.cluster));
  Demand demand{model, cluster, optimus_software(), fitted_constants()};
  demand.batch = one.batch, demand.sequence_length = one.sequence_length;
  const auto begin = std::chrono::steady_clock::now();
  const PipelineTemplates templates = value_or_throw(PipelineTemplates::build(
      demand, {.devices_per_node = one.devices_per_node, .max_nodes = one.nodes, .failures = 1}));
  const double made = seconds_since(begin);
  constexpr int kRounds = 200;
  int plans = 0;
  const auto choosing = std::chrono::steady_clock::now();
  for (int round = 0; round < kRounds; ++round)
    for (int nodes = templates.smallest(); nodes <= one.nodes; ++nodes)
      plans += !templates.plan_for(nodes).pipelines.empty();
  fmt::print("| {} | {}, nodes of {} | {} | {} | {:.2f} s | {:.1f} µs |\n", one.model, one.cluster,
             one.devices_per_node, one.batch, templates.smallest(), made,
             seconds_since(choosing) / plans * 1e6);
}

}  // namespace
}  // namespace optimus

int main() {
  fmt::print("| model | cluster | batch | smallest | build | assemble |\n|---|---|---|---|---|---|\n");
  for (const optimus::TemplateCase& one : {optimus::TemplateCase{"gpt2", "cpux8", 1, 8, 32, 64},
                                           {"gpt3-1.3b", "v100x32", 1, 32, 512, 1024},
                                           {"llama3-8b", "a100x32", 1, 32, 256, 4096},
                                           {"llama3-70b", "h100x256", 8, 32, 512, 8192}})
    optimus::show_templates(one);
}
