// In `optimus-engine`: optimus profile --hardware.
#include <fmt/format.h>

#include "base/file.h"
#include "cli/training.h"
#include "cluster/hardware_json.h"
#include "cluster/open.h"
#include "cost/link_cost.h"
#include "run/probe_machine.h"

namespace optimus {
namespace {

double highest(const KernelTimes& times, const char* table) {
  const auto found = times.tables.find(table);
  if (found == times.tables.end()) return 0;
  return *std::max_element(found->second.rates.begin(), found->second.rates.end());
}

// Measured sums beside what the link that was measured predicts for them.
OrderedJson collectives_json(const MachineProfile& machine) {
  OrderedJson list = OrderedJson::array();
  const LinkSpec& spec = machine.hardware.groups.front().domain_link;
  const Link link{LinkClass::domain, spec.bytes_per_second, spec.bytes_per_second, spec.latency,
                  &spec.efficiency};
  for (const CollectiveTime& one : machine.collectives) {
    const GroupShape shape{.size = one.members, .domains = 1, .nodes = 1, .inside = link, .between = {}};
    list.push_back({{"members", one.members},
                    {"bytes", one.bytes},
                    {"seconds", one.seconds},
                    {"predicted_seconds",
                     LinkCost(fitted_constants()).collective(Collective::all_reduce, shape, one.bytes)}});
  }
  return list;
}

std::string link_text(const char* name, const LinkSpec& link) {
  return fmt::format("{:<12}{:.2f} GB/s, {:.1f} us\n", name, link.bytes_per_second / 1e9,
                     link.latency.value * 1e6);
}

}  // namespace

HardwareReport report_hardware(const ProbeOptions& options, Console& console) {
  const MachineProfile machine = probe_machine(options, console);
  const HardwareProfile& hardware = machine.hardware;
  const Path path = options.out.empty() ? measured_cluster_path() : options.out;
  RealFileSystem files;
  std::error_code ignored;
  if (!path.parent_path().empty()) std::filesystem::create_directories(path.parent_path(), ignored);
  value_or_throw(write_atomically(files, path, to_json(hardware).dump(1) + "\n"));
  const DeviceType& type = hardware.types.front();
  const NodeGroup& group = hardware.groups.front();
  OrderedJson json = {
      {"devices", group.num_devices},      {"type", type.name},
      {"memory_bytes", type.memory.value}, {"memory_bytes_per_second", type.memory_bytes_per_second},
      {"threads", machine.threads},        {"file", path.string()}};
  std::string shown = fmt::format("devices     {} {}, {} of memory at {:.1f} GB/s\n", group.num_devices,
                                  type.name, text(type.memory), type.memory_bytes_per_second / 1e9);
  for (const KernelTimes& times : type.kernels) {
    json["products_per_second"][text(times.format)] = highest(times, "product");
    json["attention_per_second"][text(times.format)] = highest(times, "attention");
    shown +=
        fmt::format("{:<12}products up to {:.3g} TFLOP/s, attention {:.3g}, updates {:.3g} G parameters/s\n",
                    text(times.format), highest(times, "product") / 1e12, highest(times, "attention") / 1e12,
                    highest(times, "update") / 1e9);
  }
  json["links"] = {{"domain",
                    {{"bytes_per_second", group.domain_link.bytes_per_second},
                     {"latency_seconds", group.domain_link.latency.value}}},
                   {"host",
                    {{"bytes_per_second", group.host_link.bytes_per_second},
                     {"latency_seconds", group.host_link.latency.value}}}};
  shown += link_text("links", group.domain_link) + link_text("host", group.host_link);
  json["collectives"] = collectives_json(machine);
  for (const OrderedJson& one : json["collectives"])
    shown += fmt::format("{:<12}{} bytes between {}: {:.2f} ms, predicted {:.2f} ms\n", "all-reduce",
                         one["bytes"].get<double>(), one["members"].get<int>(),
                         one["seconds"].get<double>() * 1e3, one["predicted_seconds"].get<double>() * 1e3);
  shown += fmt::format("written to {}; --cluster {} uses it\n", path.string(),
                       options.out.empty() ? "here" : path.string());
  return {json, shown};
}

}  // namespace optimus
