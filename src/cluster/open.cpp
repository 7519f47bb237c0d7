// See open.h.
#include "cluster/open.h"

#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "cluster/hardware_json.h"
#include "cluster/standard.h"

namespace optimus {

namespace {

Cluster read_cluster(const std::string& path) {
  constexpr Bytes kLargestFile{std::int64_t{32} << 20};
  const std::string text = value_or_throw(read_file(path, kLargestFile));
  HardwareProfile profile = hardware_from_json(parse_json(text, path), path);
  if (profile.name.empty()) profile.name = Path(path).stem().string();
  return Cluster(std::move(profile), path);
}

}  // namespace

Path measured_cluster_path() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const Path base = cache && *cache ? Path(cache) : home && *home ? Path(home) / ".cache" : Path("/tmp");
  return base / "optimus-megatron" / "hardware.json";
}

Cluster open_cluster(const std::string& name_or_path) {
  std::error_code ignored;
  if (name_or_path == "here") {
    const Path path = measured_cluster_path();
    if (!std::filesystem::exists(path, ignored))
      throw UserError("cluster here: this machine was not measured yet; optimus profile --hardware does it");
    return read_cluster(path.string());
  }
  const bool is_path = name_or_path.find('/') != std::string::npos || ends_with(name_or_path, ".json");
  const bool is_name = looks_like_cluster_name(name_or_path) || find_device_type(name_or_path);
  if (!is_path && is_name)
    return Cluster(standard_cluster(name_or_path), "cluster " + in_quotes(name_or_path));
  if (is_path || std::filesystem::exists(name_or_path, ignored)) return read_cluster(name_or_path);
  throw UserError(
      "cluster {} is neither a file, a name such as h100x512 or a100x16+v100x32, nor here; types are {}",
      in_quotes(name_or_path), join(device_type_names(), ", "));
}

}  // namespace optimus
