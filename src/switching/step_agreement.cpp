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
  const std::unique_ptr<Pending> pending = std::move(in_flight_);
  throw_if_failed(pending->wait(Deadline::after(timeout_, "the end of a step")));
  ReducedVote combined;
  std::memcpy(&combined, votes_.const_data_ptr<std::int64_t>(), sizeof(combined));
  const std::int64_t first_staying = -combined.minus_first_staying;
  const bool is_only_drained =
      combined.drained > 0 && first_staying == combined.drained && combined.last_staying == combined.drained;
  return {.ends = combined.ends != 0,
          .asked = combined.asked,
          .prepared = -combined.minus_prepared,
          .changes_membership = combined.changes_membership != 0,
          .drained = static_cast<int>(combined.drained) - 1,
          .stays = combined.last_staying > 0 && !is_only_drained,
          .collects = combined.collects != 0,
          .probes = combined.probes != 0,
          .phase = combined.phase};
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
