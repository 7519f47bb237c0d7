// The constants file. It contains the values that differ from the fitted constants, keyed by name, and their
// origin. `simulate --refit` writes it, and `--constants FILE` reads it.
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
// Throws a UserError if the format or version is not supported, a name is unknown, or a value is out of
// bounds.
NamedConstants parse_constants(std::string_view text, const std::string& source);
NamedConstants read_constants(const Path& path);

}  // namespace optimus
