// Any environment, one "NAME=VALUE" per line, as set by a launcher, and as a rank's token setting: a rank
// inside its world, or a one-line UserError.
#include <cstdint>
#include <cstdlib>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "cluster/launcher.h"
#include "cluster/token.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  std::map<std::string, std::string> variables;
  for (const std::string_view line : split({reinterpret_cast<const char*>(data), size}, '\n'))
    if (const std::size_t equals = line.find('='); equals != std::string_view::npos)
      variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  const Environment environment = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  try {
    const LaunchInfo info = detect_launcher(environment);
    if (info.rank < 0 || info.rank >= info.world_size || info.local_rank < 0) std::abort();
    if (info.master_port < 0 || info.master_port > 65535) std::abort();
    (void)info.master();
    (void)find_token(environment, "");
  } catch (const UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
