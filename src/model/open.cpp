// See open.h.
#include "model/open.h"

#include "base/error.h"
#include "base/text.h"
#include "model/hf_config.h"
#include "model/presets.h"

namespace optimus {

ModelSpec open_model(const std::string& name_or_path) {
  if (auto preset = find_preset(name_or_path)) return *preset;
  std::error_code ignored;
  if (std::filesystem::exists(name_or_path, ignored)) return read_hf_config(name_or_path);
  const bool looks_like_path =
      name_or_path.find('/') != std::string::npos || ends_with(name_or_path, ".json");
  if (looks_like_path) throw UserError("{}: no such file or folder", in_quotes(name_or_path, 300));
  const std::vector<std::string> names = preset_names();
  throw UserError("model {} is neither a preset nor a folder with a config.json{}; presets are {}",
                  in_quotes(name_or_path), did_you_mean(name_or_path, names), join(names, ", "));
}

}  // namespace optimus
