// Implements probe_machine.h.
#include "run/probe_machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "cluster/standard.h"
#include "engine/probe.h"
#include "switching/memory.h"

namespace optimus {
namespace {

// Returns the "model name" in /proc/cpuinfo, or "cpu" if there is none.
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "cpu";
}

double highest_rate(const KernelTimes& times) {
  const auto entry = times.tables.find("product");
  return *std::max_element(entry->second.rates.begin(), entry->second.rates.end());
}

void set_peak(PeakFlops& peak, NumberFormat format, double value) {
  if (format == NumberFormat::fp64) peak.fp64 = value;
  if (format == NumberFormat::fp32) peak.fp32 = value;
  if (format == NumberFormat::bf16) peak.bf16 = value;
  if (format == NumberFormat::fp16) peak.fp16 = value;
}

// Returns the fraction of the highest rate that cubic GEMMs reach, as a function of size. Used for trainers
// whose kernels were not measured.
Curve cubic_gemm_efficiency(const KernelTimes& times, double peak) {
  const RateTable& table = times.tables.at("product");
  Curve curve;
  double previous_efficiency = 0;
  for (const double edge : table.axes[0]) {
    const double sizes[] = {edge, edge, edge};
    previous_efficiency = std::clamp(table.at(sizes) / peak, std::max(previous_efficiency, 1e-6), 1.0);
    curve.points.push_back({edge, previous_efficiency});
  }
  return curve;
}

DeviceType measured_type(const ProbeOptions& options, at::Device device, EventSink& events) {
  const std::string vendor_name = device.is_cuda() ? device_name(device) : processor_name();
  const std::optional<DeviceType> known_type =
      device.is_cuda() ? find_type_by_vendor_name(vendor_name) : std::nullopt;
  DeviceType type = known_type.value_or(DeviceType{.name = device.is_cuda() ? vendor_name : "cpu"});
  std::vector<Precision> precisions = {Precision::fp32, Precision::bf16};
  if (!options.precision.empty()) precisions = {parse_precision(options.precision, "--precision")};
  for (const Precision precision : precisions)
    type.kernels.push_back(probe_kernels(device, precision, events));
  type.memory = total_memory(device);
  if (known_type) return type;
  type.memory_bytes_per_second = probe_memory(device);
  for (const KernelTimes& times : type.kernels) set_peak(type.peak, times.format, highest_rate(times));
  type.peak.fp32 = std::max(type.peak.fp32, type.peak.fp64);
  if (type.peak.fp32 == 0) type.peak.fp32 = highest_rate(type.kernels.front());
  type.gemm_efficiency = cubic_gemm_efficiency(type.kernels.front(), highest_rate(type.kernels.front()));
  return type;
}

}  // namespace

MachineProfile probe_machine(const ProbeOptions& options, EventSink& events) {
  const at::Device device =
      parse_device(options.device.empty() ? (has_cuda() ? "cuda" : "cpu") : options.device);
  MachineProfile machine;
  machine.threads = set_num_threads(static_cast<int>(options.threads));
  HardwareProfile& hardware = machine.hardware;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  hardware.name = host;
  hardware.types = {measured_type(options, device, events)};
  const DeviceType& type = hardware.types.front();
  const int count = device.is_cuda() ? num_cuda_devices() : 1;
  NodeGroup group;
  group.num_devices = group.devices_per_node = group.devices_per_domain = count;
  const LinkSpec loopback = probe_loopback(events);
  group.domain_link = group.node_link = group.host_link = group.network.nic = loopback;
  if (device.is_cuda()) {
    if (find_device_type(type.name)) {
      group = standard_group(type.name, 0, count);
      group.devices_per_node = group.devices_per_domain = count;
    }
    group.host_link = probe_copies(at::Device(at::kCPU), device, events);
    if (count > 1)
      group.domain_link = group.node_link =
          probe_copies(at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 1), events);
  } else {
    // Workers on the same processor share its cores for computation and for their messages.
    machine.idle_link = loopback;
    group.domain_link = group.node_link = probe_workers(events);
    machine.collectives = probe_all_reduce(events);
  }
  group.type = 0, group.host_memory = total_memory(at::Device(at::kCPU));
  hardware.groups = {group};
  validate(hardware, "this machine");
  return machine;
}

}  // namespace optimus
