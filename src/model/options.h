// The --model option and the flags that override its dimensions, shared by train, plan, profile and simulate.
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

// Opens the model that the options specify and applies the overrides. Throws a UserError.
ModelSpec resolve(const ModelOptions& options);

}  // namespace optimus
