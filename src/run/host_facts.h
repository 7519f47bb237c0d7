// What a process that hosts a run needs to know about it: for membership changes and emergency checkpoints.
#pragma once

#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "launch/run_host.h"
#include "run/train_rank.h"

namespace optimus {

// What the host needs to let the workers continue without others. `device` is the state before the run
// allocates on it. The spec must outlive the result.
MembershipCoordinator::Inputs coordinator_facts(const RunSpec& spec, const Path& folder,
                                                const DeviceFacts& device);
// What the host of the store needs to write an emergency checkpoint. `folder` is absolute.
EmergencyCheckpointOptions emergency_checkpoint_options(const RunSpec& spec, const Path& folder);
// For a process that hosts a run without a starting process; the caller fills in the workers.
RunHostOptions host_facts_of(const RunSpec& spec, const Path& folder, const DeviceFacts& device);

}  // namespace optimus
