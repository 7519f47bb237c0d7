// Slots of all stages of a pipeline in time: each stage works through its order, and waits for what its neighbours send.
#pragma once

#include <vector>

#include "simulate/lanes.h"

namespace optimus {

struct PipelineStage {
  const StageTimes* times = nullptr;
  const Order* order = nullptr;  // of all micro-batches
  double to_next = 0;            // seconds of a message to the next stage (from the last stage: to the first)
  double to_previous = 0;
};

struct SlotSpan {
  double start = 0, end = 0;
};

struct PipelineTimes {
  std::vector<std::vector<SlotSpan>> slots;  // [stage][slot]
  std::vector<double> ends;                  // [stage]: behind the last slot
  std::vector<TimeSplit> splits;             // [stage]: of all slots, with bubbles
};

// sizes: of each micro-batch, in units of the usual one. Who wants only the ends need not keep slots and splits.
PipelineTimes run_pipeline(const std::vector<PipelineStage>& stages, const std::vector<double>& sizes,
                           StageMessages messages, bool keeps_slots = true);

}  // namespace optimus
