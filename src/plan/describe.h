// A plan in words and pictures.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// "pp4 tp2 dp2 zero1 1f1b": what an engineer would say. Axes of size 1 are left out, uneven ones are ranges
// (tp1..2); several pipelines are told apart ("pp4+pp3").
std::string short_text(const Plan& plan);

// "pp8 tp8 dp8 zero1 1f1b, micro-batch 2, recompute full": with what that leaves out.
std::string full_text(const Plan& plan);

// Devices x layers: one row per stage, its devices, blocks and strategies.
std::string picture(const Plan& plan);

// What changes from a to b, one sentence each; empty when they are equal.
std::vector<std::string> difference(const Plan& a, const Plan& b);

}  // namespace optimus
