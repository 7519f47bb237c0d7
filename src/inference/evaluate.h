// Measures how well a model predicts a text. The documents form one token stream in file order, which is
// split into windows of fixed length. Positions start at 0 in each window, and targets are shifted by one.
// The last partial window is dropped.
#pragma once

#include "base/event.h"
#include "data/samples.h"
#include "engine/engine.h"
#include "inference/loss_sum.h"
#include "settings/inference_options.h"

namespace optimus {

// Evaluates at most the first `max_windows` windows of a range, plan.batch at a time. Throws UserError if a
// token is outside the vocabulary.
LossSum sum_losses(Engine& engine, const Plan& plan, const ModelSpec& model, const StreamRange& range,
                   std::int64_t max_windows, EventSink& events, int rank = 0);

struct EvalResult {
  double loss = 0, perplexity = 0;
  std::int64_t num_tokens = 0;
};
// Throws UserError.
EvalResult evaluate(const EvalOptions& options, EventSink& events);

}  // namespace optimus
