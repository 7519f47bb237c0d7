// Determines which conditions affect a plan, and the keys under which measured step times are stored. Pure
// functions.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

// Findings with a smaller factor do not change the plan, because they are noise or the condition is about to
// end.
constexpr double kMinAnswerableFactor = 1.12;

std::set<int> devices_of(const Plan& plan);
std::vector<int> node_of_each_device(const Cluster& cluster);

// Returns the conditions that another plan can mitigate. If measurements cannot tell which of several nodes
// is slow, there is a condition for each of these nodes, because the new plan must be good in all cases.
std::vector<Condition> answerable_conditions(const std::vector<Finding>& findings);
bool is_mitigable_by_plan(const Finding& finding);

// Returns the conditions that affect this plan: heavy stages, and slow devices and nodes that it uses.
std::vector<Condition> conditions_of_plan(const std::vector<Condition>& conditions, const Plan& plan,
                                          const Cluster& cluster);

// Whether `condition` is the same as `known_condition`, or a slow device on the host that `known_condition`
// reports as slow.
bool is_part_of(const Condition& condition, const Condition& known_condition, const Cluster& cluster);
// Whether one of the findings covers a location of `known_finding`.
bool is_covered_by(const Finding& known_finding, const std::vector<Finding>& findings,
                   const Cluster& cluster);

// The devices of the plan that are not slowed down by any condition.
std::set<int> healthy_devices(const Plan& plan, const std::vector<Condition>& conditions,
                              const Cluster& cluster);

// A key for the conditions that affect the plan, with their severity rounded to about 20 %. Empty if there
// are no conditions.
std::string condition_key(const std::vector<Condition>& conditions, const Plan& plan, const Cluster& cluster);

// (plan, condition key). If no condition affects a plan, it has the same step time on other nodes of the same
// type, so its key does not depend on the nodes that it uses.
using MeasurementKey = std::pair<std::string, std::string>;
MeasurementKey measurement_key(const Plan& plan, const std::string& condition_key, const Cluster& cluster);

}  // namespace optimus
