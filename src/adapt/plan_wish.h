// A plan that the run itself wants, and what it expects of it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// A plan that was weighed and not taken.
struct WeighedPlan {
  std::string plan, response{};            // "pp2 tp2", "recut"
  std::optional<double> predicted_gain{};  // below 0: it would be slower
  bool operator==(const WeighedPlan&) const = default;
};

// Of what a wish is to answer: a few steps have shown it, and it is not known whether it lasts.
enum class Suspicion { open, right, wrong };

struct PlanWish {
  Plan plan;
  std::string why;            // what was found, for people
  bool is_placed = false;     // its devices are ranks; else they are dealt so that least moves
  bool is_suspicion = false;  // to be prepared; done only when it has proved right
  double predicted_gain = 0;  // of steps a second: 0.38
  double payback_steps = 0;   // until the pause is won back, as predicted
  std::string cause{};        // word_of(Cause); empty: none is left
  std::vector<WeighedPlan> alternatives{};
};

// Why the run keeps its plan, though something slows it down.
struct PlanStay {
  std::string why, reason;  // what was found; what speaks against a change: "nothing pays"
  std::string cause{};
  std::vector<WeighedPlan> alternatives{};
};

}  // namespace optimus
