// The first answer when ranks are lost, come or leave: a plan for those who are there now, from what was thought of before. Nobody
// waits for the planner where there is another way, and the planner then improves it.
//
//   the planner's plan for so many, where it is there already (thought of ahead: one less, one more)
//   else what loses least until it is: the templates' plan, or that who holds the same layers takes over
//   else the planner's plan, which is then waited for
#pragma once

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "recovery/templates.h"
#include "reshard/plan_change.h"

namespace optimus {

struct FirstAnswer {
  enum class Kind { planned, of_templates, takeover };
  Plan plan;
  Kind kind = Kind::planned;
};
std::string text(FirstAnswer::Kind kind);

// How the state of a training lies: devices from `num_there` on are gone, the first `num_staying` may be used.
struct WhereStateIs {
  const Plan& plan;
  int num_there = 0, num_staying = 0;
};
RanksThere ranks_there(const WhereStateIs& state);
// Those who are there compute all of it, without a byte moving. Nothing where that cannot be.
std::optional<Plan> taken_over(const WhereStateIs& state);

// One thread; what it thinks of, it thinks of on others.
class FirstAnswers {
 public:
  struct Facts {
    std::function<Plan(int num_devices)> choose;  // the planner; any thread; throws UserError
    // Any thread; throws UserError. None: there are no templates.
    std::function<PipelineTemplates()> make_templates{};
    std::function<double(const Plan& plan)> step_seconds{};  // predicted
    // For `to` to have its state: predicted seconds. Throws UserError when that cannot be.
    std::function<double(const WhereStateIs& from, const Plan& to)> move_seconds{};
  };
  explicit FirstAnswers(Facts facts);

  // Now and then: there are so many devices.
  void think_ahead(int num_devices);
  // state: nothing where all of it comes from files. Throws UserError when there is no plan.
  FirstAnswer answer(int num_devices, const std::optional<WhereStateIs>& state);
  // The planner's plan for so many, once it is there, if it is worth a change from `now`. Asked for until it says something or is_settled.
  std::optional<Plan> improvement(const FirstAnswer& now, int num_devices);
  bool is_settled(int num_devices);

 private:
  bool is_planned(int num_devices);
  void plan(int num_devices);
  std::optional<FirstAnswer> at_hand(int num_devices, const std::optional<WhereStateIs>& state);

  const Facts facts_;
  std::map<int, std::shared_future<Plan>> planned_;  // by number of devices
  std::shared_future<std::shared_ptr<const PipelineTemplates>> templates_;
};

}  // namespace optimus
