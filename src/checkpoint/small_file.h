// A small file that accompanies weights: config.json, tokenizer files, plan.json, settings.toml, state.json.
#pragma once

#include <string>

namespace optimus {

struct SmallFile {
  std::string name;  // without a folder
  std::string content;
};

}  // namespace optimus
