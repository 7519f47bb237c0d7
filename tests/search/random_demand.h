// Small random demands for tests: models, clusters and batches for which all candidates can be enumerated.
#pragma once

#include <rapidcheck.h>

#include <cmath>
#include <cstdlib>
#include <memory>

#include "cluster/standard.h"
#include "model/presets.h"
#include "search/search.h"

namespace optimus {

inline bool is_long() { return std::getenv("OPTIMUS_LONG") != nullptr; }

// Uniform over [low, high], independent of RapidCheck's size.
inline int pick(int low, int high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}
template <typename T>
T pick_of(std::initializer_list<T> values) {
  return *(values.begin() + pick(0, static_cast<int>(values.size()) - 1));
}

// A demand together with the objects to which it refers.
struct Problem {
  ModelSpec model;
  Cluster cluster;
  std::unique_ptr<ClusterView> cluster_view{};
  std::int64_t batch = 1, sequence_length = 1;
  Precision precision = Precision::bf16;
  Constraints constraints{};
  Goal goal = Goal::throughput;
  Failures failures{};
  const Software* software = &optimus_software();

  Demand demand() const {
    Demand result{model, cluster, *software, fitted_constants()};
    result.batch = batch, result.sequence_length = sequence_length, result.precision = precision;
    result.constraints = constraints, result.goal = goal, result.price = 2.5, result.failures = failures;
    return result;
  }
};

inline Problem make_problem(const std::string& model, HardwareProfile profile, std::int64_t batch,
                            std::int64_t sequence_length) {
  Problem problem{*find_preset(model), Cluster(std::move(profile))};
  problem.batch = batch, problem.sequence_length = sequence_length;
  return problem;
}

// The view refers to the cluster, which must have its final address first.
inline std::unique_ptr<Problem> placed(Problem problem) {
  auto result = std::make_unique<Problem>(std::move(problem));
  result->cluster_view = std::make_unique<ClusterView>(result->cluster);
  return result;
}

inline std::unique_ptr<Problem> make(const std::string& model, const std::string& cluster, std::int64_t batch,
                                     std::int64_t sequence_length) {
  return placed(make_problem(model, standard_cluster(cluster), batch, sequence_length));
}

// A mixture-of-experts model that fits on small clusters: all layers equal, dense layers first, or dense
// layers in between.
inline void make_small_mixture(ModelSpec& model) {
  Mixture& mixture = model.mixture;
  model.hidden = 1024, model.heads = 16, model.kv_heads = model.is_latent() ? 16 : 4, model.ffn = 4096;
  mixture.experts = pick_of<std::int64_t>({4, 6, 8}), mixture.experts_per_token = 2, mixture.ffn = 1536;
  mixture.groups = mixture.groups_per_token = 1;
  if (mixture.shared_ffn > 0) mixture.shared_ffn = mixture.ffn;
  const auto last = static_cast<int>(model.layers) - 1;
  if (model.family != Family::mixtral) mixture.first_layer = pick(0, std::min(3, last));
  if (model.family == Family::qwen3_moe && last >= 1)
    mixture.first_layer = 0, mixture.layer_interval = pick(1, std::min(3, last + 1));
}

// Up to `most_devices` devices, few layers, and sometimes too little memory.
inline std::unique_ptr<Problem> random_problem(int most_devices, int most_layers) {
  const std::string name =
      pick_of<const char*>({"gpt2", "gpt3-1.3b", "llama3.2-1b", "llama3-8b", "qwen2.5-3b", "mixtral-8x7b",
                            "qwen3-30b-a3b", "deepseek-v3"});
  HardwareProfile profile =
      standard_cluster(std::string(pick_of<const char*>({"h100", "a100", "v100", "b200", "cpu"})) + "x" +
                       std::to_string(pick(1, most_devices)));
  const int devices = profile.groups.front().num_devices;
  if (pick(0, 4) == 0 && devices > 2) profile.missing_devices = {pick(0, devices - 1)};
  if (pick(0, 4) == 0) profile.speed_factors = {{pick(0, devices - 1), 0.6}};
  if (pick(0, 2) == 0)  // enough memory for some of the candidates
    profile.types.front().memory = Bytes(static_cast<std::int64_t>(pick(4, 30)) << 30);
  Problem problem =
      make_problem(name, std::move(profile), pick(1, 24), pick_of<std::int64_t>({256, 512, 1024}));
  problem.model.layers = pick(1, most_layers);
  if (problem.model.is_mixture()) make_small_mixture(problem.model);
  problem.precision = pick_of({Precision::bf16, Precision::fp32, Precision::bf16});
  if (pick(0, 5) == 0) problem.goal = Goal::cost;
  // The cost of failures for a plan without copies ranges from almost nothing to several times its step time.
  if (pick(0, 3) == 0) problem.failures.mtbf = Seconds(devices * std::pow(10.0, pick(2, 6)));
  if (pick(0, 5) == 0) problem.software = find_software("megatron-core-2025");
  if (pick(0, 7) == 0) problem.software = find_software("megatron-2021");
  if (pick(0, 5) == 0) problem.constraints.recompute = pick_of<const char*>({"none", "selective", "full"});
  return placed(std::move(problem));
}

}  // namespace optimus
