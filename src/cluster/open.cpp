// See open.h.
#include "cluster/open.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "cluster/hardware_json.h"
#include "cluster/standard.h"

namespace optimus {

namespace {

Cluster read_cluster(const std::string& path) {
  constexpr Bytes kMaxFileBytes{std::int64_t{32} << 20};
  const std::string text = read_input_file(path, kMaxFileBytes);
  HardwareProfile profile = hardware_from_json(parse_json(text, path), path);
  if (profile.name.empty()) profile.name = Path(path).stem().string();
  return Cluster(std::move(profile), path);
}

constexpr std::string_view kMeasuredName = "here";

// Returns 12 for "herex12", and nullopt for names of any other form.
std::optional<int> parse_num_workers(std::string_view name) {
  const std::string prefix = std::string(kMeasuredName) + "x";
  if (!name.starts_with(prefix) || name.size() > prefix.size() + 6) return std::nullopt;
  int count = 0;
  const auto [rest, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), count);
  return error == std::errc() && rest == name.data() + name.size() && count > 0 ? std::optional(count)
                                                                                : std::nullopt;
}

// Returns a device type with 1 / `num_parts` of the performance and memory of `type`.
DeviceType part_of_device(DeviceType type, int num_parts) {
  for (double* rate :
       {&type.peak.fp64, &type.peak.fp32, &type.peak.bf16, &type.peak.fp16, &type.memory_bytes_per_second})
    *rate /= num_parts;
  type.memory.value /= num_parts;
  for (KernelTimes& times : type.kernels)
    for (auto& [name, table] : times.tables)
      for (double& rate : table.rates) rate /= num_parts;
  return type;
}

Cluster open_measured_cluster(const std::string& name) {
  std::error_code ignored;
  const Path path = measured_cluster_path();
  if (!std::filesystem::exists(path, ignored))
    throw UserError(
        "cluster {}: this machine has not been measured yet; run optimus profile --hardware first", name);
  Cluster measured_cluster = read_cluster(path.string());
  const std::optional<int> workers = parse_num_workers(name);
  if (!workers) return measured_cluster;
  const DeviceType& type = measured_cluster.profile().types.front();
  const bool is_shared = type.name == "cpu";
  if (!is_shared && *workers > measured_cluster.num_devices())
    throw UserError(
        "cluster {}: this machine was measured with {} {}; use {}x{} for the vendor's specification", name,
        measured_cluster.num_devices(), type.name, type.name, *workers);
  HardwareProfile profile =
      replicate_device(measured_cluster.profile(), type, *workers, is_shared ? *workers : 1);
  profile.name = name;
  return Cluster(std::move(profile), "cluster " + in_quotes(name));
}

}  // namespace

HardwareProfile replicate_device(HardwareProfile measured_profile, const DeviceType& type, int num_devices,
                                 int workers_per_processor) {
  measured_profile.types = {part_of_device(type, workers_per_processor)};
  measured_profile.groups.resize(1);
  NodeGroup& group = measured_profile.groups.front();
  group.type = 0;
  group.num_devices = group.devices_per_node = group.devices_per_domain = num_devices;
  return measured_profile;
}

bool is_measured_cluster_name(const std::string& name) {
  return name == kMeasuredName || parse_num_workers(name);
}

Path measured_cluster_path() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const Path base = cache && *cache ? Path(cache) : home && *home ? Path(home) / ".cache" : Path("/tmp");
  return base / "optimus-megatron" / "hardware.json";
}

Cluster open_cluster(const std::string& name_or_path) {
  std::error_code ignored;
  if (is_measured_cluster_name(name_or_path)) return open_measured_cluster(name_or_path);
  const bool is_path = name_or_path.find('/') != std::string::npos || ends_with(name_or_path, ".json");
  const bool is_name = looks_like_cluster_name(name_or_path) || find_device_type(name_or_path);
  if (!is_path && is_name)
    return Cluster(standard_cluster(name_or_path), "cluster " + in_quotes(name_or_path));
  if (is_path || std::filesystem::exists(name_or_path, ignored)) return read_cluster(name_or_path);
  throw UserError(
      "cluster {}: expected a file, a name such as h100x512 or a100x16+v100x32, or here (herex2 for two "
      "workers on this machine); known types are {}",
      in_quotes(name_or_path), join(device_type_names(), ", "));
}

}  // namespace optimus
