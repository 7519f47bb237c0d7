// A file of a few pages that lies beside weights: config.json, a tokenizer's, plan.json, settings.toml, state.json.
#pragma once

#include <string>

namespace optimus {

struct SmallFile {
  std::string name;  // no folder in it
  std::string content;
};

}  // namespace optimus
