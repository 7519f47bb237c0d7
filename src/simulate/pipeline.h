// Simulates the slots of all stages of a pipeline. Each stage processes the slots in its order and waits for
// messages from adjacent stages.
#pragma once

#include <vector>

#include "simulate/lanes.h"

namespace optimus {

struct PipelineStage {
  const StageTimes* times = nullptr;
  const Order* order = nullptr;  // slots of all micro-batches
  double to_next = 0;            // seconds of a message to the next stage (from the last to the first stage)
  double to_previous = 0;
};

struct SlotSpan {
  double start = 0, end = 0;
};

struct PipelineTimes {
  std::vector<std::vector<SlotSpan>> slots;  // [stage][slot]
  std::vector<double> stage_ends;            // [stage]: end of the last slot
  std::vector<TimeSplit> splits;             // [stage]: breakdown of the stage's time, including bubbles
};

// `sizes` contains the size of each micro-batch relative to the first. If `stores_slots` is false,
// result.slots stays empty.
PipelineTimes run_pipeline(const std::vector<PipelineStage>& stages, const std::vector<double>& sizes,
                           StageMessaging messages, bool stores_slots = true);

}  // namespace optimus
