// Chooses the first plan when ranks are lost, join or leave. For the ranks that are present, it chooses among
// plans that were prepared in advance or are found quickly. The run waits for the planner only if there is no
// such plan. The planner's plan may replace the first one later.
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

// The location of the training state: devices with index `num_present` and above are lost; the first
// `num_staying` devices may be used by the new plan.
struct StateLocation {
  const Plan& plan;
  int num_present = 0, num_staying = 0;
};
AvailableRanks present_ranks(const StateLocation& state);
// A plan with which the present ranks compute the whole model without moving state; nullopt if they do not
// have all layers.
std::optional<Plan> takeover_plan(const StateLocation& state);

// One thread. Plans are prepared on other threads.
class InterimPlanner {
 public:
  struct Inputs {
    // All may be called on any thread.
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
  // `state` is nullopt if all state is read from files. Infeasible if there is no plan.
  Feasible<InterimPlan> plan_for(int num_devices, const std::optional<StateLocation>& state);
  // The planner's plan for this number of devices, once it is available, if switching to it from
  // `interim_plan` is worthwhile. Poll until it returns a plan or is_settled().
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
