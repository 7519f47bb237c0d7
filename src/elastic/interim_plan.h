// Chooses the first plan after ranks were lost, joined or left. It chooses among plans for the available
// ranks that were prepared in advance or can be found quickly. The run waits for the planner only if there is
// no such plan. Later, the planner's plan may replace the first plan.
//
//   the planner's plan for this number of devices, if it was prepared in advance (one fewer, one more)
//   else the fastest substitute: a plan from pipeline templates, or a takeover by ranks with the same layers
//   else the planner's plan, and the run waits for it
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "recovery/templates.h"
#include "reshard/plan_change.h"

namespace optimus {

struct InterimPlan {
  enum class Kind { planned, from_templates, takeover };
  Plan plan;
  Kind kind = Kind::planned;
};
std::string text(InterimPlan::Kind kind);

// The location of the training state. Devices with index `num_present` and above are lost. The new plan may
// use the first `num_staying` devices.
struct StateLocation {
  const Plan& plan;
  int num_present = 0, num_staying = 0;
};
AvailableRanks present_ranks(const StateLocation& state);
// Returns a plan with which the available ranks compute the whole model without moving state. Returns nullopt
// if they do not have all layers.
std::optional<Plan> takeover_plan(const StateLocation& state);

// One thread. Plans are prepared on other threads.
class InterimPlanner {
 public:
  struct Inputs {
    // All of these functions may be called on any thread.
    std::function<Feasible<Plan>(int num_devices)> choose;  // the planner
    // Empty if there are no templates.
    std::function<Feasible<PipelineTemplates>()> make_templates{};
    std::function<Feasible<double>(const Plan& plan)> step_seconds{};  // predicted
    // Predicted seconds to move the state to plan `to`.
    std::function<Feasible<double>(const StateLocation& from, const Plan& to)> move_seconds{};
  };
  explicit InterimPlanner(Inputs inputs);

  // Called periodically with the current number of devices.
  void plan_ahead(int num_devices);
  // `state` is nullopt if all state is read from files. Infeasible if no plan exists.
  Feasible<InterimPlan> plan_for(int num_devices, const std::optional<StateLocation>& state);
  // Returns the planner's plan for this number of devices when it is available, if a switch from
  // `interim_plan` is worthwhile. Call it repeatedly until it returns a plan or is_settled() is true.
  std::optional<Plan> improvement(const InterimPlan& interim_plan, int num_devices);
  bool is_settled(int num_devices);

 private:
  bool is_planned(int num_devices);
  void plan(int num_devices);
  std::optional<InterimPlan> substitute_plan(int num_devices, const std::optional<StateLocation>& state);

  const Inputs inputs_;
  std::map<int, std::shared_future<Feasible<Plan>>> planned_;  // [number of devices]
  std::shared_future<std::shared_ptr<const PipelineTemplates>> templates_;
};

}  // namespace optimus
