// --model and the flags that override its dimensions, shared by train, plan, profile and simulate.
#pragma once

#include <string>

#include "base/options.h"
#include "model/spec.h"

namespace optimus {

struct ModelOptions {
  std::string model;
  ModelOverrides overrides;
  bool tied = false, untied = false;
};
void declare(OptionTable& table, ModelOptions& options);

// The model that the options specify, with its overrides. Throws UserError.
ModelSpec resolve(const ModelOptions& options);

}  // namespace optimus
