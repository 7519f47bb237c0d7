// Part of `optimus-engine`: implements optimus profile --hardware and --links.
#include <fmt/format.h>

#include "base/file.h"
#include "cli/training.h"
#include "cluster/hardware_json.h"
#include "cluster/open.h"
#include "cost/link_cost.h"
#include "launch/rendezvous.h"
#include "run/probe_cluster.h"
#include "run/probe_machine.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

double highest_rate(const KernelTimes& times, const char* table) {
  const auto entry = times.tables.find(table);
  if (entry == times.tables.end()) return 0;
  return *std::max_element(entry->second.rates.begin(), entry->second.rates.end());
}

// Returns the measured all-reduces, each with the time predicted from the measured link.
OrderedJson collectives_json(const MachineProfile& machine) {
  OrderedJson list = OrderedJson::array();
  const LinkSpec& spec = machine.idle_link;
  const Link link{LinkClass::domain, spec.bytes_per_second, spec.bytes_per_second, spec.latency,
                  &spec.efficiency};
  for (const CollectiveTime& collective : machine.collectives) {
    const GroupShape shape{
        .size = collective.members, .domains = 1, .nodes = 1, .intra_node = link, .inter_node = {}};
    list.push_back(
        {{"members", collective.members},
         {"bytes", collective.bytes},
         {"seconds", collective.seconds},
         {"predicted_seconds", LinkCost(with_measured_links(fitted_constants()))
                                   .collective_seconds(Collective::all_reduce, shape, collective.bytes)}});
  }
  return list;
}

std::string link_text(const char* name, const LinkSpec& link, const char* condition) {
  return fmt::format("{:<12}{:.2f} GB/s, {:.1f} us{}\n", name, link.bytes_per_second / 1e9,
                     link.latency.value * 1e6, condition);
}

}  // namespace

namespace {

Path write_hardware(const HardwareProfile& hardware, const Path& path) {
  RealFileSystem files;
  std::error_code ignored;
  if (!path.parent_path().empty()) std::filesystem::create_directories(path.parent_path(), ignored);
  value_or_throw(write_atomically(files, path, to_json(hardware).dump(1) + "\n"));
  return path;
}

std::string pair_text(const ClusterProfile& cluster, const PairTimes& pair) {
  const std::string names = cluster.hosts[static_cast<std::size_t>(pair.first)].name + " - " +
                            cluster.hosts[static_cast<std::size_t>(pair.second)].name;
  if (pair.times.size() < 2) return fmt::format("{:<24}not measured: {}\n", names, pair.why);
  const LinkSpec link = link_from_messages(pair.times);
  return fmt::format("{:<24}{:.3g} GB/s, {:.1f} us, messages up to {}\n", names, link.bytes_per_second / 1e9,
                     link.latency.value * 1e6,
                     text(Bytes(static_cast<std::int64_t>(pair.times.back().bytes))));
}

}  // namespace

LinksReport report_links(const ProbeOptions& options, Console& console) {
  std::optional<ClusterProfile> cluster;
  try {
    cluster = probe_cluster({detect_launcher(process_environment()), options, console, console.stop_token()});
  } catch (const RankRefused&) {
    return {1, {}};
  }
  if (!cluster) return {};
  const Path path =
      write_hardware(cluster->hardware, options.out.empty() ? Path("cluster.json") : options.out);
  OrderedJson json = {{"file", path.string()}, {"seconds", cluster->seconds}};
  std::string output;
  int devices = 0;
  for (const ProbedHost& host : cluster->hosts) devices += host.num_devices;
  json["devices"] = devices, json["hosts"] = cluster->hosts.size();
  json["pairs"] = OrderedJson::array();
  for (const PairTimes& pair : cluster->pairs) {
    OrderedJson report = {{"hosts",
                           {cluster->hosts[static_cast<std::size_t>(pair.first)].name,
                            cluster->hosts[static_cast<std::size_t>(pair.second)].name}}};
    if (pair.times.size() < 2) {
      report["failed"] = pair.why;
    } else {
      const LinkSpec link = link_from_messages(pair.times);
      report["bytes_per_second"] = link.bytes_per_second, report["latency_seconds"] = link.latency.value;
    }
    json["pairs"].push_back(report);
    output += pair_text(*cluster, pair);
  }
  output +=
      fmt::format("{} devices on {} hosts, measured in {:.1f} s, written to {}; use it with --cluster {}\n",
                  devices, cluster->hosts.size(), cluster->seconds, path.string(), path.string());
  return {0, HardwareReport{json, output}};
}

HardwareReport report_hardware(const ProbeOptions& options, Console& console) {
  const MachineProfile machine = probe_machine(options, console);
  const HardwareProfile& hardware = machine.hardware;
  const Path path = write_hardware(hardware, options.out.empty() ? measured_cluster_path() : options.out);
  const DeviceType& type = hardware.types.front();
  const NodeGroup& group = hardware.groups.front();
  OrderedJson json = {
      {"devices", group.num_devices},      {"type", type.name},
      {"memory_bytes", type.memory.value}, {"memory_bytes_per_second", type.memory_bytes_per_second},
      {"threads", machine.threads},        {"file", path.string()}};
  std::string output = fmt::format("devices     {} {}, {} memory at {:.1f} GB/s\n", group.num_devices,
                                   type.name, text(type.memory), type.memory_bytes_per_second / 1e9);
  for (const KernelTimes& times : type.kernels) {
    json["products_per_second"][text(times.format)] = highest_rate(times, "product");
    json["attention_per_second"][text(times.format)] = highest_rate(times, "attention");
    output +=
        fmt::format("{:<12}GEMM up to {:.3g} TFLOP/s, attention {:.3g}, updates {:.3g} G parameters/s\n",
                    text(times.format), highest_rate(times, "product") / 1e12,
                    highest_rate(times, "attention") / 1e12, highest_rate(times, "update") / 1e9);
  }
  json["links"] = {{"domain",
                    {{"bytes_per_second", group.domain_link.bytes_per_second},
                     {"latency_seconds", group.domain_link.latency.value}}},
                   {"host",
                    {{"bytes_per_second", group.host_link.bytes_per_second},
                     {"latency_seconds", group.host_link.latency.value}}}};
  // True on CPUs, where the workers share the cores.
  const bool is_shared = !machine.collectives.empty();
  output += link_text("links", group.domain_link, is_shared ? ", between workers that are computing" : "");
  if (is_shared) {
    json["links"]["idle"] = {{"bytes_per_second", machine.idle_link.bytes_per_second},
                             {"latency_seconds", machine.idle_link.latency.value}};
    output += link_text("idle links", machine.idle_link, ", between idle workers");
  }
  output += link_text("host", group.host_link, "");
  json["collectives"] = collectives_json(machine);
  for (const OrderedJson& report : json["collectives"])
    output +=
        fmt::format("{:<12}{} bytes between {}: {:.2f} ms, {:.2f} ms predicted over idle links\n",
                    "all-reduce", report["bytes"].get<double>(), report["members"].get<int>(),
                    report["seconds"].get<double>() * 1e3, report["predicted_seconds"].get<double>() * 1e3);
  output += fmt::format("written to {}; use it with --cluster {}\n", path.string(),
                        options.out.empty() ? "here" : path.string());
  return {json, output};
}

}  // namespace optimus
