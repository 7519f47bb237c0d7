// Gradients that a device sums with devices of other stages or pipelines. These are the gradients of a tied
// embedding or, if there are several pipelines, all gradients. Replicas inside the pipeline are members of
// the same sum, so these gradients are not summed over replicas beforehand.
//
// If several tensor-parallel ranks have equal copies of a gradient, only the lowest rank contributes and the
// others add zero. All of them receive the sum.
#pragma once

#include <vector>

#include "base/units.h"
#include "layout/layout.h"
#include "plan/plan.h"

namespace optimus {

// One sum per block and group of owners.
struct SharedSum {
  int block = 0;
  std::vector<int> members;  // devices, ascending, including this device
  std::vector<TensorBox> boxes;
  Bytes bytes;
};

// The sums in which this device takes part, in the order in which all devices execute them. The sums of the
// last block come first.
std::vector<SharedSum> shared_sums(const Plan& plan, const ModelSpec& model, int device);

}  // namespace optimus
