// Implements plan_argument.h.
#include "api/plan_argument.h"

#include "plan/plan_json.h"

namespace optimus {

Plan parse_plan_argument(const std::string& plan) {
  const std::size_t first = plan.find_first_not_of(" \t\r\n");
  const bool is_text = first != std::string::npos && plan[first] == '{';
  return is_text ? parse_plan(plan, "the plan") : read_plan(plan);
}

}  // namespace optimus
