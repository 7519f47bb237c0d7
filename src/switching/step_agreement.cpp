// Implements step_agreement.h.
#include "switching/step_agreement.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <limits>
#include <utility>

namespace optimus {

StepAgreement::StepAgreement(Comm& comm, Seconds timeout)
    : comm_(comm),
      timeout_(timeout),
      votes_(at::zeros({sizeof(ReducedVote) / sizeof(std::int64_t)}, at::kLong)) {}

StepAgreement::~StepAgreement() = default;

StepVote StepAgreement::take() {
  if (in_flight_ == nullptr) return {};
  const std::unique_ptr<Pending> ended = std::move(in_flight_);
  throw_if_failed(ended->wait(Deadline::after(timeout_, "the end of a step")));
  ReducedVote all;
  std::memcpy(&all, votes_.const_data_ptr<std::int64_t>(), sizeof(all));
  const std::int64_t first_staying = -all.minus_first_staying;
  const bool is_only_drained =
      all.drained > 0 && first_staying == all.drained && all.last_staying == all.drained;
  return {.ends = all.ends != 0,
          .asked = all.asked,
          .prepared = -all.minus_prepared,
          .changes_membership = all.changes_membership != 0,
          .drained = static_cast<int>(all.drained) - 1,
          .stays = all.last_staying > 0 && !is_only_drained,
          .collects = all.collects != 0,
          .probes = all.probes != 0,
          .phase = all.phase};
}

void StepAgreement::submit(const StepVote& own) {
  const std::int64_t number = comm_.rank() + 1;
  const ReducedVote vote{
      .ends = own.ends,
      .asked = own.asked,
      .minus_prepared = -own.prepared,
      .changes_membership = own.changes_membership,
      .drained = own.drained + 1,
      .last_staying = own.stays ? number : 0,
      .minus_first_staying = -(own.stays ? number : std::numeric_limits<std::int32_t>::max()),
      .collects = own.collects,
      .probes = own.probes,
      .phase = own.phase};
  std::memcpy(votes_.data_ptr<std::int64_t>(), &vote, sizeof(vote));
  in_flight_ = comm_.all_reduce({Role::world, {}}, votes_, ReduceOp::maximum, "the step agreement");
}

}  // namespace optimus
