// The implementations of replay() (trials/replay.h), a function per system.
#pragma once

#include "trials/replay.h"

namespace optimus {

ReplayOutcome replay_oobleck(const ReplayCase& one);  // replay_restarting.cpp
ReplayOutcome replay_varuna(const ReplayCase& one);
ReplayOutcome replay_bamboo(const ReplayCase& one);  // replay_redundant.cpp
ReplayOutcome replay_ours(const ReplayCase& one);    // replay_ours.cpp

}  // namespace optimus
