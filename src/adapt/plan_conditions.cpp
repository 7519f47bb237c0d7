// Implements plan_conditions.h.
#include "adapt/plan_conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/plan_json.h"

namespace optimus {

std::set<int> devices_of(const Plan& plan) {
  std::set<int> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

std::vector<int> node_of_each_device(const Cluster& cluster) {
  std::vector<int> result;
  for (int device = 0; device < cluster.num_devices(); ++device)
    result.push_back(cluster.node_of(Device{device}));
  return result;
}

bool is_answerable(const Finding& finding) {
  return is_answerable(finding.cause) && finding.factor > kLeastAnswerableFactor;
}

std::vector<Condition> answerable_conditions(const std::vector<Finding>& findings) {
  std::vector<Condition> result;
  for (const Finding& finding : findings) {
    if (!is_answerable(finding)) continue;
    for (const int where : finding.where) result.push_back({finding.cause, where, finding.factor});
  }
  return result;
}

std::vector<Condition> conditions_of_plan(const std::vector<Condition>& conditions, const Plan& plan,
                                          const Cluster& cluster) {
  const std::set<int> devices = devices_of(plan);
  std::set<int> nodes;
  for (const int device : devices) nodes.insert(cluster.node_of(Device{device}));
  std::vector<Condition> result;
  for (const Condition& one : conditions)
    if (one.cause == Cause::heavy_stage || (one.cause == Cause::device ? devices : nodes).contains(one.where))
      result.push_back(one);
  return result;
}

bool is_part_of(const Condition& one, const Condition& known_condition, const Cluster& cluster) {
  if (known_condition.cause == Cause::host && one.cause == Cause::device)
    return cluster.node_of(Device{one.where}) == known_condition.where;
  return known_condition.cause == one.cause && known_condition.where == one.where;
}

bool is_covered_by(const Finding& known_finding, const std::vector<Finding>& findings,
                   const Cluster& cluster) {
  for (const Finding& one : findings)
    for (const int place : one.where)
      for (const int known_place : known_finding.where)
        if (is_part_of({one.cause, place}, {known_finding.cause, known_place}, cluster)) return true;
  return false;
}

std::set<int> healthy_devices(const Plan& plan, const std::vector<Condition>& conditions,
                              const Cluster& cluster) {
  std::set<int> devices = devices_of(plan);
  for (const Condition& one : conditions)
    std::erase_if(devices, [&](int device) {
      if (one.cause == Cause::host) return one.where == cluster.node_of(Device{device});
      return one.cause == Cause::device && one.where == device;
    });
  return devices;
}

std::string condition_key(const std::vector<Condition>& conditions, const Plan& plan,
                          const Cluster& cluster) {
  std::string key;
  for (const Condition& one : conditions_of_plan(conditions, plan, cluster))
    key += fmt::format("{} {} {} ", word_of(one.cause), one.where, std::lround(4 * std::log2(one.factor)));
  return key;
}

MeasurementKey measurement_key(const Plan& plan, const std::string& condition_key, const Cluster& cluster) {
  const HardwareProfile& machines = cluster.profile();
  if (!condition_key.empty() || !machines.speed_factors.empty() || machines.groups.size() > 1)
    return {plan_hash(plan), condition_key};
  Plan anywhere = plan;
  std::map<int, int> nodes;  // numbered in the order in which the plan uses them
  const int per_node = machines.groups.front().devices_per_node;
  for (Pipeline& pipeline : anywhere.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices) {
        const int node = cluster.node_of(Device{device});
        device = nodes.try_emplace(node, static_cast<int>(nodes.size())).first->second * per_node +
                 device % per_node;
      }
  return {plan_hash(anywhere), condition_key};
}

}  // namespace optimus
