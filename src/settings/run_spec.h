// RunSpec: all decisions about a training that are made before the first step. The launching process resolves
// it (run/train.h), and worker processes read the same values from the run's folder (run/process_rank.h). It
// does not change during the run.
#pragma once

#include <vector>

#include "reshard/switch_script.h"
#include "settings/options.h"
#include "settings/resume.h"
#include "settings/settings.h"

namespace optimus {

struct RunSpec {
  TrainOptions options;  // every value that the user did not give is filled in
  TrainSettings settings;
  ResumedRun resumed{};  // its lock is held by the starting process for the duration of the run
  std::vector<ScriptedSwitch> script{};
};

}  // namespace optimus
