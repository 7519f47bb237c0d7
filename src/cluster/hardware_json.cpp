// Implements the reader of hardware_json.h.
#include "cluster/hardware_json.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cluster/standard.h"

namespace optimus {
namespace {

using Names = std::vector<std::string>;

Bytes read_bytes(const JsonView& value) {
  if (value.raw().is_string()) return parse_bytes(value.text(), value.location());
  return Bytes(value.integer(0));
}

int read_count(const JsonView& value, int smallest) {
  return static_cast<int>(value.integer(smallest, kMaxDevices));
}

void read_count_into(int& target, const JsonView& parent, std::string_view key, int smallest) {
  if (const auto value = parent.find(key)) target = read_count(*value, smallest);
}

// Checks the length of the list before creating a view of each element.
std::vector<JsonView> elements_up_to(int max_count, const JsonView& list) {
  if (list.raw().is_array() && list.raw().size() > static_cast<std::size_t>(max_count))
    list.refuse(fmt::format("a list of at most {} elements", max_count));
  return list.elements();
}

// Reads a list of pairs: [[a, b], …].
template <typename Item, typename Make>
std::vector<Item> read_pairs(const JsonView& list, int max_count, std::string_view form, Make make) {
  std::vector<Item> items;
  for (const JsonView& entry : elements_up_to(max_count, list)) {
    if (!entry.raw().is_array() || entry.raw().size() != 2) entry.refuse(form);
    const std::vector<JsonView> pair = entry.elements();
    items.push_back(make(pair[0], pair[1]));
  }
  return items;
}

Curve read_curve(const JsonView& parent, std::string_view key) {
  const auto list = parent.find(key);
  if (!list) return {};
  return {read_pairs<CurvePoint>(*list, kMaxCurvePoints, "a [size, fraction] pair",
                                 [](const JsonView& size, const JsonView& part) {
                                   return CurvePoint{size.number(), part.number()};
                                 })};
}

PeakFlops read_peak(const JsonView& value) {
  value.allow_only(Names{"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"});
  return {value.number_or("fp64", 0), value.at("fp32").number(),  value.number_or("tf32", 0),
          value.number_or("bf16", 0), value.number_or("fp16", 0), value.number_or("fp8", 0),
          value.number_or("fp4", 0)};
}

std::vector<double> read_numbers(const JsonView& list, int max_count) {
  std::vector<double> numbers;
  for (const JsonView& number : elements_up_to(max_count, list)) numbers.push_back(number.number());
  return numbers;
}

NumberFormat read_format(const JsonView& word) {
  for (const NumberFormat format : kAllFormats)
    if (word.text() == text(format)) return format;
  word.refuse("one of fp64, fp32, tf32, bf16, fp16, fp8, fp4");
}

KernelTimes read_kernel_times(const JsonView& value) {
  value.allow_only(Names{"format", "launch_seconds", "step_seconds", "tables"});
  KernelTimes times;
  times.format = read_format(value.at("format"));
  times.launch_seconds = value.number_or("launch_seconds", 0);
  times.step_seconds = value.number_or("step_seconds", 0);
  const JsonView tables = value.at("tables");
  if (!tables.raw().is_object() || tables.raw().size() > kMaxKernelTables)
    tables.refuse(fmt::format("an object of at most {} tables", kMaxKernelTables));
  for (const auto& [name, ignored] : tables.raw().items()) {
    const JsonView table = tables.at(name);
    table.allow_only(Names{"axes", "rates"});
    RateTable& rate_table = times.tables[name];
    for (const JsonView& axis : elements_up_to(3, table.at("axes")))
      rate_table.axes.push_back(read_numbers(axis, 1000));
    rate_table.rates = read_numbers(table.at("rates"), kMaxTableRates);
  }
  return times;
}

DeviceType read_type(const JsonView& value) {
  value.allow_only(Names{"name", "memory", "peak_flops", "memory_bytes_per_second", "watts", "price_per_hour",
                         "product_efficiency", "kernels"});
  DeviceType type;
  type.name = value.at("name").text();
  type.memory = read_bytes(value.at("memory"));
  type.peak = read_peak(value.at("peak_flops"));
  type.memory_bytes_per_second = value.at("memory_bytes_per_second").number();
  type.watts = value.number_or("watts", 0);
  if (const auto price = value.find("price_per_hour")) type.price_per_hour = price->number();
  type.gemm_efficiency = read_curve(value, "product_efficiency");
  if (const auto list = value.find("kernels"))
    for (const JsonView& times : elements_up_to(static_cast<int>(std::size(kAllFormats)), *list))
      type.kernels.push_back(read_kernel_times(times));
  return type;
}

LinkSpec read_link_fields(const JsonView& value) {
  return {value.at("bytes_per_second").number(), Seconds(value.at("latency_seconds").number()),
          read_curve(value, "efficiency")};
}

void read_link_into(LinkSpec& target, const JsonView& group, std::string_view key, bool is_required) {
  const auto value = group.find(key);
  if (!value && !is_required) return;
  const JsonView link = value ? *value : group.at(key);
  link.allow_only(Names{"bytes_per_second", "latency_seconds", "efficiency"});
  target = read_link_fields(link);
}

void read_network_into(NetworkSpec& target, const JsonView& group, bool is_required) {
  const auto value = group.find("network");
  if (!value && !is_required) return;
  const JsonView network = value ? *value : group.at("network");
  network.allow_only(
      Names{"nics_per_node", "bytes_per_second", "latency_seconds", "efficiency", "oversubscription"});
  target.nics_per_node = static_cast<int>(network.at("nics_per_node").integer(1, 1000));
  target.nic = read_link_fields(network);
  target.oversubscription = network.number_or("oversubscription", 1);
}

// Returns the index of a type that the file defines or of a built-in type. A built-in type is added to the
// profile.
int find_type(std::vector<DeviceType>& types, const JsonView& name) {
  const auto find = [&](std::string_view type_name) {
    return std::find_if(types.begin(), types.end(),
                        [&](const DeviceType& type) { return type.name == type_name; });
  };
  auto match = find(name.text());
  if (match == types.end()) {
    const auto built_in_type = find_device_type(name.text());
    if (!built_in_type) {
      Names known_names = device_type_names();
      for (const DeviceType& type : types) known_names.push_back(type.name);
      throw UserError("{}: {} is neither in device_types nor a built-in type{}", name.location(),
                      in_quotes(name.text()), did_you_mean(name.text(), known_names));
    }
    match = find(built_in_type->name);
    if (match == types.end()) match = types.insert(types.end(), *built_in_type);
  }
  return static_cast<int>(match - types.begin());
}

NodeGroup read_group(std::vector<DeviceType>& types, const JsonView& value) {
  value.allow_only(Names{"type", "devices", "devices_per_node", "devices_per_domain", "domain_link",
                         "node_link", "host_link", "host_memory", "network", "island"});
  const int type = find_type(types, value.at("type"));
  const int num_devices = read_count(value.at("devices"), 1);
  const std::string& type_name = types[static_cast<std::size_t>(type)].name;
  const bool is_built_in = find_device_type(type_name).has_value();
  NodeGroup group;
  if (is_built_in) group = standard_group(type_name, type, num_devices);
  group.type = type, group.num_devices = num_devices;
  if (!is_built_in) {
    group.devices_per_node = read_count(value.at("devices_per_node"), 1);
    group.devices_per_domain = group.devices_per_node;
  }
  const bool is_node_one_domain = group.devices_per_domain == group.devices_per_node;
  read_count_into(group.devices_per_node, value, "devices_per_node", 1);
  if (is_node_one_domain) group.devices_per_domain = group.devices_per_node;
  read_count_into(group.devices_per_domain, value, "devices_per_domain", 1);
  read_count_into(group.island, value, "island", 0);
  read_link_into(group.domain_link, value, "domain_link", !is_built_in);
  read_link_into(group.node_link, value, "node_link", !is_built_in);
  read_link_into(group.host_link, value, "host_link", !is_built_in);
  read_network_into(group.network, value, !is_built_in);
  if (const auto memory = value.find("host_memory")) group.host_memory = read_bytes(*memory);
  return group;
}

IslandLink read_island_link(const JsonView& value) {
  value.allow_only(Names{"islands", "bytes_per_second", "latency_seconds"});
  const std::vector<JsonView> islands = elements_up_to(2, value.at("islands"));
  if (islands.size() != 2) value.at("islands").refuse("a list of two islands");
  IslandLink link;
  link.first = read_count(islands[0], 0), link.second = read_count(islands[1], 0);
  if (link.first > link.second) std::swap(link.first, link.second);
  link.bytes_per_second = value.at("bytes_per_second").number();
  link.latency = Seconds(value.at("latency_seconds").number());
  return link;
}

void read_devices(const JsonView& document, HardwareProfile& profile) {
  if (const auto list = document.find("speed_factors"))
    profile.speed_factors = read_pairs<SpeedFactor>(
        *list, kMaxDevices, "a [device, factor] pair", [](const JsonView& device, const JsonView& factor) {
          return SpeedFactor{read_count(device, 0), factor.number()};
        });
  if (const auto list = document.find("missing_devices"))
    for (const JsonView& device : elements_up_to(kMaxDevices, *list))
      profile.missing_devices.push_back(read_count(device, 0));
  std::sort(profile.speed_factors.begin(), profile.speed_factors.end(),
            [](const SpeedFactor& a, const SpeedFactor& b) { return a.device < b.device; });
  std::sort(profile.missing_devices.begin(), profile.missing_devices.end());
}

}  // namespace

HardwareProfile hardware_from_json(const Json& document, const std::string& source) {
  const JsonView view(document, source);
  view.allow_only(
      Names{"name", "device_types", "groups", "island_links", "speed_factors", "missing_devices"});
  HardwareProfile profile;
  profile.name = view.text_or("name", "");
  if (const auto types = view.find("device_types"))
    for (const JsonView& type : elements_up_to(kMaxDeviceTypes, *types))
      profile.types.push_back(read_type(type));
  for (const JsonView& group : elements_up_to(kMaxNodeGroups, view.at("groups")))
    profile.groups.push_back(read_group(profile.types, group));
  if (const auto links = view.find("island_links"))
    for (const JsonView& link : elements_up_to(kMaxIslands * kMaxIslands, *links))
      profile.island_links.push_back(read_island_link(link));
  read_devices(view, profile);
  validate(profile, source);
  return profile;
}

}  // namespace optimus
