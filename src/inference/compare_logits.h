// Whether two models compute the same: both run on the same tokens, one after the other, so that one of them is in memory.
#pragma once

#include <string>

#include "base/event.h"
#include "checkpoint/open_model.h"

namespace optimus {

struct LogitsComparison {
  bool is_done = false;
  std::string why_not;    // when it is not done
  bool is_equal = false;  // bit for bit, `from` rounded to the type that `to` stores
  // Of logits, norm-wise: what rounding the weights changed. 0 when nothing was rounded.
  double rounding = 0;
};
// On the processor, in fp32, or fp64 where the weights are. Not done when the memory is too small. Throws UserError.
LogitsComparison compare_logits(const OpenedModel& from, const OpenedModel& to, EventSink& events);

}  // namespace optimus
