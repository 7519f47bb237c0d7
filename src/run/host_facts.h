// Collects the settings that a process needs to host a run, for membership changes and for emergency
// checkpoints.
#pragma once

#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "launch/run_host.h"
#include "run/train_rank.h"

namespace optimus {

// Returns the inputs of the coordinator that handles membership changes. `device` describes the device before
// the run allocates memory on it. The spec must outlive the result.
MembershipCoordinator::Inputs coordinator_facts(const RunSpec& spec, const Path& folder,
                                                const DeviceFacts& device);
// Returns the options that the host of the store uses to write an emergency checkpoint. `folder` is absolute.
EmergencyCheckpointOptions emergency_checkpoint_options(const RunSpec& spec, const Path& folder);
// For a process that hosts a run whose ranks were started by a launcher. The caller fills in the workers.
RunHostOptions host_facts_of(const RunSpec& spec, const Path& folder, const DeviceFacts& device);

}  // namespace optimus
