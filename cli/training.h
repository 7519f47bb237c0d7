// Where commands that need libtorch are run. Two programs are made from this folder: `optimus`, which starts in milliseconds and
// has no libtorch, and `optimus-engine` beside it, which has. The first knows all commands and their flags and hands those that
// train over to the second (hand_over.cpp); the second does them (train_here.cpp).
#pragma once

#include "cli/console.h"
#include "run/options.h"

namespace optimus {

// Returns the exit code. Throws UserError.
int run_training(TrainOptions& options, OptionTable& table, Console& console);

}  // namespace optimus
