// A file of constants: the values that differ from the fitted constants, by name, and where they come from.
// Written by `simulate --refit` and read by `--constants FILE`.
//
//   {"format": "optimus-constants", "version": 1, "origin": "48 steps of runs/a on h200x1",
//    "constants": {"residual.compute": 0.93, "residual.host": 1.4}}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "cost/constants.h"

namespace optimus {

struct NamedConstants {
  Constants constants;
  std::string origin;  // where the values come from, such as "fitted on published runs"
};

// The built-in constants.
NamedConstants builtin_constants();

OrderedJson to_json(const NamedConstants& named);
// Throws UserError for another format or version, an unknown name, or a value outside its bounds.
NamedConstants parse_constants(std::string_view text, const std::string& source);
NamedConstants read_constants(const Path& path);

}  // namespace optimus
