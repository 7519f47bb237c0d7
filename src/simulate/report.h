// Formats a predicted step as a table, as JSON, as a drawing of the pipeline in the terminal, or as a file
// for Perfetto.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "simulate/simulate.h"

namespace optimus {

std::string prediction_text(const StepPrediction& step, const Setup& setup);
OrderedJson prediction_json(const StepPrediction& step, const Setup& setup);

// The parts of a step's time in seconds, with their names in JSON.
std::vector<std::pair<std::string, double>> named_parts(const TimeSplit& split);

// Draws one row per stage, at most `columns` wide, with time running to the right. Digits are forward passes
// (the last digit of the micro-batch), letters are backward passes (a for micro-batch 0), and dots are idle
// time.
std::string draw_step(const StepPrediction& step, int columns);

// Returns trace events in JSON for Perfetto (ui.perfetto.dev) and chrome://tracing. There is one process per
// pipeline, one thread for the slots of each stage and, if `instructions` is not empty, one thread for each
// lane of a stage.
std::string perfetto_text(const StepPrediction& step, const std::vector<TracedInstruction>& instructions);

// If there are more instructions than this, a trace contains only slots, because viewers are slow with larger
// files.
inline constexpr std::size_t kMaxTracedInstructions = 300'000;

}  // namespace optimus
