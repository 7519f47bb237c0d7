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

bool is_mitigable_by_plan(const Finding& finding) {
  return is_mitigable_by_plan(finding.cause) && finding.factor > kMinAnswerableFactor;
}

std::vector<Condition> answerable_conditions(const std::vector<Finding>& findings) {
  std::vector<Condition> result;
  for (const Finding& finding : findings) {
    if (!is_mitigable_by_plan(finding)) continue;
    for (const int location : finding.locations) result.push_back({finding.cause, location, finding.factor});
  }
  return result;
}

std::vector<Condition> conditions_of_plan(const std::vector<Condition>& conditions, const Plan& plan,
                                          const Cluster& cluster) {
  const std::set<int> devices = devices_of(plan);
  std::set<int> nodes;
  for (const int device : devices) nodes.insert(cluster.node_of(Device{device}));
  std::vector<Condition> result;
  for (const Condition& condition : conditions)
    if (condition.cause == Cause::heavy_stage ||
        (condition.cause == Cause::device ? devices : nodes).contains(condition.location))
      result.push_back(condition);
  return result;
}

bool is_part_of(const Condition& condition, const Condition& known_condition, const Cluster& cluster) {
  if (known_condition.cause == Cause::host && condition.cause == Cause::device)
    return cluster.node_of(Device{condition.location}) == known_condition.location;
  return known_condition.cause == condition.cause && known_condition.location == condition.location;
}

bool is_covered_by(const Finding& known_finding, const std::vector<Finding>& findings,
                   const Cluster& cluster) {
  for (const Finding& finding : findings)
    for (const int place : finding.locations)
      for (const int known_place : known_finding.locations)
        if (is_part_of({finding.cause, place}, {known_finding.cause, known_place}, cluster)) return true;
  return false;
}

std::set<int> healthy_devices(const Plan& plan, const std::vector<Condition>& conditions,
                              const Cluster& cluster) {
  std::set<int> devices = devices_of(plan);
  for (const Condition& condition : conditions)
    std::erase_if(devices, [&](int device) {
      if (condition.cause == Cause::host) return condition.location == cluster.node_of(Device{device});
      return condition.cause == Cause::device && condition.location == device;
    });
  return devices;
}

std::string condition_key(const std::vector<Condition>& conditions, const Plan& plan,
                          const Cluster& cluster) {
  std::string key;
  for (const Condition& condition : conditions_of_plan(conditions, plan, cluster))
    key += fmt::format("{} {} {} ", word_of(condition.cause), condition.location,
                       std::lround(4 * std::log2(condition.factor)));
  return key;
}

MeasurementKey measurement_key(const Plan& plan, const std::string& condition_key, const Cluster& cluster) {
  const HardwareProfile& machines = cluster.profile();
  if (!condition_key.empty() || !machines.speed_factors.empty() || machines.groups.size() > 1)
    return {plan_hash(plan), condition_key};
  Plan renumbered = plan;
  std::map<int, int> nodes;  // numbered in the order in which the plan uses them
  const int per_node = machines.groups.front().devices_per_node;
  for (Pipeline& pipeline : renumbered.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices) {
        const int node = cluster.node_of(Device{device});
        device = nodes.try_emplace(node, static_cast<int>(nodes.size())).first->second * per_node +
                 device % per_node;
      }
  return {plan_hash(renumbered), condition_key};
}

}  // namespace optimus
