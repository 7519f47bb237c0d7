// The implementations of replay() (trials/replay.h), one function per system.
#pragma once

#include "trials/replay_case.h"

namespace optimus {

ReplayOutcome replay_oobleck(const ReplayCase& replay_case);  // replay_restarting.cpp
ReplayOutcome replay_varuna(const ReplayCase& replay_case);
ReplayOutcome replay_bamboo(const ReplayCase& replay_case);  // replay_redundant.cpp
ReplayOutcome replay_ours(const ReplayCase& replay_case);    // replay_ours.cpp

}  // namespace optimus
