// Formats a plan for display: as a short name, in full, as a picture, and as a list of differences from
// another plan.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// The short name of a plan, such as "pp4 tp2 dp2 zero1 1f1b". Axes of size 1 are omitted, uneven axes are
// shown as ranges (tp1..2), and several pipelines are joined with a plus sign ("pp4+pp3").
std::string short_text(const Plan& plan);

// The short text plus the settings that it omits: "pp8 tp8 dp8 zero1 1f1b, micro-batch 2, recompute full".
std::string full_text(const Plan& plan);

// A table of devices and layers: one row per stage, with its devices, blocks and strategies.
std::string picture(const Plan& plan);

// Lists the changes from a to b, one sentence per change. Empty if the plans are equal.
std::vector<std::string> difference(const Plan& a, const Plan& b);

}  // namespace optimus
