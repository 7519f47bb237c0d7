// See software.h.
#include "cli/software.h"

#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

const Software& software_asked(const std::string& name) {
  if (name.empty()) return our_software();
  if (const Software* found = find_software(name)) return *found;
  std::vector<std::string> names;
  for (const Software& known : all_software()) names.emplace_back(known.name);
  throw UserError("--software: {} is not known{}; known are {}", in_quotes(name), did_you_mean(name, names),
                  join(names, ", "));
}

}  // namespace optimus
