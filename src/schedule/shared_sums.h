// Gradients that a device adds up with devices of other stages or pipelines: those of a tied embedding, and all when there are
// several pipelines. Replicas inside the pipeline are members too, so that they are not summed before.
//
// Of tensor parts that hold equal copies of a gradient the lowest contributes it and the others nothing; all get the sum.
#pragma once

#include <vector>

#include "base/units.h"
#include "layout/layout.h"
#include "plan/plan.h"

namespace optimus {

// One sum for each block and group of owners.
struct SharedSum {
  int block = 0;
  std::vector<int> members;  // devices, ascending; this device is among them
  std::vector<HeldBox> boxes;
  Bytes bytes;
};

// In the order in which every device meets them: the last block first.
std::vector<SharedSum> shared_sums(const Plan& plan, const ModelSpec& model, int device);

}  // namespace optimus
