// Checks whether two models compute the same logits. The models process the same tokens one after the other,
// so that only one model is in memory at a time.
#pragma once

#include <string>

#include "base/event.h"
#include "checkpoint/open_model.h"

namespace optimus {

struct LogitsComparison {
  bool is_done = false;
  std::string why_not;  // why the comparison was not done; empty if it was
  // Whether the logits are bit-identical after `from` was rounded to the type in which `to` is stored.
  bool is_equal = false;
  // The norm of the change in the logits caused by rounding the weights, relative to the norm of the logits.
  // 0 if no weights were rounded.
  double rounding = 0;
};
// Runs on the CPU in fp32, or in fp64 if either model's weights are fp64. Does nothing if there is too little
// memory. Throws UserError.
LogitsComparison compare_logits(const OpenedModel& from, const OpenedModel& to, EventSink& events);

}  // namespace optimus
