// Implements step_agreement.h.
#include "switching/step_agreement.h"

#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

namespace optimus {

StepAgreement::StepAgreement(Comm& comm, Seconds timeout)
    : comm_(comm), timeout_(timeout), votes_(at::zeros({10}, at::kLong)) {}

StepAgreement::~StepAgreement() = default;

StepVote StepAgreement::take() {
  if (in_flight_ == nullptr) return {};
  const std::unique_ptr<Pending> ended = std::move(in_flight_);
  throw_if_failed(ended->wait(Deadline::after(timeout_, "the end of a step")));
  const auto* const words = votes_.const_data_ptr<std::int64_t>();
  const std::int64_t drained = words[4], last_staying = words[5], first_staying = -words[8];
  const bool is_only_drained = drained > 0 && first_staying == drained && last_staying == drained;
  return {words[0] != 0,
          words[1],
          -words[2],
          words[3] != 0,
          static_cast<int>(drained) - 1,
          last_staying > 0 && !is_only_drained,
          words[6] != 0,
          words[9] != 0,
          words[7]};
}

// The reduction is a maximum; minima are reduced as the maximum of their negatives.
void StepAgreement::submit(const StepVote& own) {
  auto* const words = votes_.data_ptr<std::int64_t>();
  words[0] = own.ends ? 1 : 0, words[1] = own.asked, words[2] = -own.prepared;
  words[3] = own.changes_membership ? 1 : 0, words[4] = own.drained + 1;
  const std::int64_t number = comm_.rank() + 1;  // so that 0 means no rank
  words[5] = own.stays ? number : 0, words[6] = own.collects ? 1 : 0;
  words[7] = own.phase, words[9] = own.probes ? 1 : 0;
  words[8] = -(own.stays ? number : std::numeric_limits<std::int32_t>::max());
  in_flight_ = comm_.all_reduce({Role::world, {}}, votes_, ReduceOp::maximum, "the step agreement");
}

}  // namespace optimus
