// See step_agreement.h.
#include "elastic/step_agreement.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace optimus {

StepAgreement::StepAgreement(Comm& comm, Seconds patience)
    : comm_(comm), patience_(patience), words_(at::zeros({8}, at::kLong)) {}

StepAgreement::~StepAgreement() = default;

StepWord StepAgreement::take() {
  if (under_way_ == nullptr) return {};
  const std::unique_ptr<Pending> ended = std::move(under_way_);
  done_or_throw(ended->wait(Deadline::after(patience_, "the end of a step")));
  const auto* const words = words_.const_data_ptr<std::int64_t>();
  return {words[0] != 0, words[1],      -words[2], words[3] != 0, static_cast<int>(words[4]) - 1,
          words[5] != 0, words[6] != 0, words[7]};
}

// The largest counts, so the fewest are told as the largest of their negatives.
void StepAgreement::say(const StepWord& own) {
  auto* const words = words_.data_ptr<std::int64_t>();
  words[0] = own.ends ? 1 : 0, words[1] = own.asked, words[2] = -own.prepared;
  words[3] = own.meets ? 1 : 0, words[4] = own.drained + 1;
  words[5] = own.stays ? 1 : 0, words[6] = own.collects ? 1 : 0;
  words[7] = own.phase;
  under_way_ = comm_.all_reduce({Role::world, {}}, words_, Sum::maximum, "whether to go on");
}

}  // namespace optimus
