// A predicted step for people and programs: a table, JSON, a picture of the pipeline in the terminal, a file for Perfetto.
#pragma once

#include <string>

#include "base/json.h"
#include "simulate/simulate.h"

namespace optimus {

std::string prediction_text(const StepPrediction& step, const Setup& setup);
OrderedJson prediction_json(const StepPrediction& step, const Setup& setup);

// One row a stage, time to the right, at most `columns` wide. Digits are forwards (the micro-batch's last digit), letters
// backwards (a for 0), dots waiting.
std::string draw_step(const StepPrediction& step, int columns);

// Trace events in JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for each pipeline, a thread for
// each stage's slots; and for each lane of a stage one with its single instructions, where there are some.
std::string perfetto_text(const StepPrediction& step, const std::vector<TracedInstruction>& instructions);

// A trace of more instructions than this shows slots alone: no viewer likes larger files.
inline constexpr std::size_t kMostTraced = 300'000;

}  // namespace optimus
