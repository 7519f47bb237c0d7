// Implements standard.h. Two tables contain all data of the built-in hardware.
#include "cluster/standard.h"

#include <algorithm>
#include <climits>
#include <span>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

struct TypeRow {
  const char* name;
  double memory_gib;
  // Dense TFLOP/s; 0 if not supported.
  double fp64, fp32, tf32, bf16, fp16, fp8, fp4;
  double memory_tb_per_second, watts;
  std::span<const CurvePoint> gemm_efficiency;
};

struct NodeRow {
  const char* type;
  int devices_per_node, devices_per_domain;
  double domain_gb_per_second, pcie_gb_per_second;  // one direction, one device
  int nics;
  double nic_gbit_per_second;
  double host_memory_gib;
  double domain_microseconds, network_microseconds;
};

// Fractions of the peak as functions of n for an n x n x n GEMM. Reference points: with n = 8192, a GEMM
// reaches 0.69 on an H200 and about 0.88 on an A100. On Hopper and Blackwell, power limits throughput before
// arithmetic does.
constexpr CurvePoint kVolta[] = {{128, .04},  {256, .15},  {512, .40}, {1024, .58},
                                 {2048, .68}, {4096, .73}, {8192, .75}};
constexpr CurvePoint kAmpere[] = {{128, .03},  {256, .12},  {512, .35}, {1024, .57},
                                  {2048, .72}, {4096, .82}, {8192, .88}};
constexpr CurvePoint kHopper[] = {{128, .01},  {256, .06},  {512, .22}, {1024, .44},
                                  {2048, .60}, {4096, .67}, {8192, .69}};
constexpr CurvePoint kBlackwell[] = {{128, .005}, {256, .03},  {512, .13}, {1024, .34},
                                     {2048, .55}, {4096, .66}, {8192, .71}};
constexpr CurvePoint kCpu[] = {{8, .05}, {32, .40}, {128, .75}, {512, .90}, {2048, .95}};

// Fractions of the bandwidth as functions of the message size in bytes. Latency is modeled separately.
constexpr CurvePoint kFastMessages[] = {
    {4096, .05}, {65536, .30}, {1 << 20, .60}, {1 << 24, .80}, {1 << 28, .87}};
constexpr CurvePoint kNetworkMessages[] = {
    {4096, .10}, {65536, .40}, {1 << 20, .75}, {1 << 24, .90}, {1 << 28, .93}};

// clang-format off
constexpr TypeRow kTypes[] = {
  // name       GiB   fp64  fp32   tf32   bf16   fp16    fp8    fp4  TB/s  watts
  {"v100-16",    16,   7.8, 15.7,     0,     0,   125,     0,     0, 0.900,  300, kVolta},
  {"v100-32",    32,   7.8, 15.7,     0,     0,   125,     0,     0, 0.900,  300, kVolta},
  {"a100-40",    40,  19.5, 19.5,   156,   312,   312,     0,     0, 1.555,  400, kAmpere},
  {"a100-80",    80,  19.5, 19.5,   156,   312,   312,     0,     0, 2.039,  400, kAmpere},
  {"a800",       80,  19.5, 19.5,   156,   312,   312,     0,     0, 2.039,  400, kAmpere},
  {"h100",       80,  67.0, 67.0, 494.7, 989.4, 989.4,  1979,     0, 3.352,  700, kHopper},
  {"h100-96",    96,  67.0, 67.0, 494.7, 989.4, 989.4,  1979,     0, 2.400,  500, kHopper},  // HBM2e, 500 W
  {"h200",      140,  67.0, 67.0, 494.7, 989.4, 989.4,  1979,     0, 4.800,  700, kHopper},
  {"b200",      179,  37.0, 75.0,  1125,  2250,  2250,  4500,  9000, 7.700, 1000, kBlackwell},
  {"b300",      268,   1.2, 75.0,  1125,  2250,  2250,  4500, 14000, 7.700, 1200, kBlackwell},
  {"gb200",     185,  40.0, 80.0,  1250,  2500,  2500,  5000, 10000, 8.000, 1200, kBlackwell},
  {"gb300",     277,   1.3, 80.0,  1250,  2500,  2500,  5000, 15000, 8.000, 1400, kBlackwell},
  {"h800",       80,   1.0, 67.0, 494.7, 989.4, 989.4,  1979,     0, 3.352,  700, kHopper},
  {"h20",        96,   1.0, 44.0,  74.0, 148.0, 148.0, 296.0,     0, 4.000,  400, kHopper},
  {"l40s",       48,   1.4, 91.6, 183.0, 362.0, 362.0, 733.0,     0, 0.864,  350, kAmpere},
  // 900 W including the CPU
  {"gh200",      96,  67.0, 67.0, 494.7, 989.4, 989.4,  1979,     0, 4.000,  700, kHopper},
  {"mi300x",    192,  81.7,163.4, 653.7,1307.4,1307.4,2614.9,     0, 5.300,  750, kHopper},
  {"mi325x",    256,  81.7,163.4, 653.7,1307.4,1307.4,2614.9,     0, 6.000, 1000, kHopper},
  {"mi350x",    288,  72.1,144.2,     0,2306.9,2306.9,4613.7,  9227, 8.000, 1000, kBlackwell},
  {"mi355x",    288,  78.6,157.3,     0,2516.6,2516.6,5033.2, 10066, 8.000, 1400, kBlackwell},
  {"rtx4090",    24,   1.3, 82.6,  82.6, 165.2, 165.2, 330.3,     0, 1.008,  450, kAmpere},
  {"rtx3090",    24,   0.6, 35.6,  35.6,  71.2,  71.2,     0,     0, 0.936,  350, kAmpere},
  {"rtx2080ti",  11,   0.4, 13.4,     0,     0,  53.8,     0,     0, 0.616,  250, kVolta},
  {"titan-rtx",  24,   0.5, 16.3,     0,     0, 130.5,     0,     0, 0.672,  280, kVolta},
  {"a6000",      48,   0.6, 38.7,  77.4, 154.8, 154.8,     0,     0, 0.768,  300, kAmpere},
  // One worker uses one core.
  {"cpu",         4,  0.05, 0.10,     0,  0.10,     0,     0,     0, 0.010,   15, kCpu},
};

constexpr NodeRow kNodes[] = {
  // type      node domain  GB/s  PCIe NICs Gb/s  host  us   us
  {"v100-16",     8,    8,  150,  12,   4, 100,   512,  4,   8},
  {"v100-32",     8,    8,  150,  12,   4, 100,   512,  4,   8},
  {"a100-40",     8,    8,  300,  24,   8, 200,  1024,  3,   7},
  {"a100-80",     8,    8,  300,  24,   8, 200,  2048,  3,   7},
  {"a800",        8,    8,  200,  24,   8, 200,  2048,  3,   7},
  {"h100",        8,    8,  450,  50,   8, 400,  2048,  3,   6},
  {"h100-96",     8,    8,  450,  50,   8, 400,  2048,  3,   6},
  {"h200",        8,    8,  450,  50,   8, 400,  2048,  3,   6},
  {"b200",        8,    8,  900,  50,   8, 400,  4096,  3,   6},
  {"b300",        8,    8,  900,  50,   8, 400,  4096,  3,   6},
  {"gb200",       4,   72,  900, 200,   4, 400,  1920,  3,   6},  // the host link is NVLink-C2C
  {"gb300",       4,   72,  900, 200,   4, 400,  1920,  3,   6},
  {"h800",        8,    8,  200,  50,   8, 400,  2048,  3,   6},
  {"h20",         8,    8,  450,  50,   8, 400,  2048,  3,   6},
  {"l40s",        8,    1,   24,  24,   2, 200,  1024, 10,  10},
  {"gh200",       4,    4,  450, 200,   4, 200,   480,  3,   7},
  {"mi300x",      8,    8,  448,  50,   8, 400,  2048,  4,   6},
  {"mi325x",      8,    8,  448,  50,   8, 400,  2048,  4,   6},
  {"mi350x",      8,    8,  537,  50,   8, 400,  3072,  4,   6},
  {"mi355x",      8,    8,  537,  50,   8, 400,  3072,  4,   6},
  {"rtx4090",     8,    1,   24,  24,   1,  25,   512, 10,  30},
  // The eight RTX 3090s copy through host memory and share a bus bandwidth of 24 GB/s.
  {"rtx3090",     8,    1,    3,   3,   1,   1,   512, 10,  50},
  {"rtx2080ti",   8,    1,   12,  12,   1,   1,   512, 10,  50},
  {"titan-rtx",   8,    1,   12,  12,   1,   1,   512, 10,  50},
  {"a6000",       8,    1,   24,  24,   1, 100,   512, 10,  20},
  {"cpu",        64,   64,    3,   3,   1,  10,   256, 80, 150},  // workers on one machine over loopback
};
// clang-format on

struct Alias {
  const char *name, *type;
};
constexpr Alias kAliases[] = {{"v100", "v100-32"}, {"a100", "a100-80"}, {"h100-80", "h100"}};

std::string canonical_type_name(std::string_view name) {
  std::string wanted_name = lower(name);
  for (const Alias& alias : kAliases)
    if (wanted_name == alias.name) return alias.type;
  return wanted_name;
}

Curve make_curve(std::span<const CurvePoint> points) { return {{points.begin(), points.end()}}; }

constexpr double kGiB = 1073741824.0;
Bytes bytes_of_gib(double amount) { return Bytes(static_cast<std::int64_t>(amount * kGiB)); }

[[noreturn]] void refuse_type(std::string_view name, const std::string& source) {
  const std::vector<std::string> known_names = device_type_names();
  throw UserError("{}: {} is not a known device type{}; known types are {}", source, in_quotes(name),
                  did_you_mean(name, known_names), join(known_names, ", "));
}

// The two parts of "h100x512": "h100" and "512". split_part() returns nullopt if the text has another form.
// The count may exceed the range of int.
struct NamePart {
  std::string type, count;
};

std::optional<NamePart> split_part(std::string_view part) {
  const auto at = part.rfind('x');
  if (at == std::string_view::npos || at == 0 || at + 1 == part.size()) return std::nullopt;
  const std::string_view count = part.substr(at + 1);
  if (count.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  return NamePart{std::string(part.substr(0, at)), std::string(count)};
}

}  // namespace

std::optional<DeviceType> find_device_type(std::string_view name) {
  const std::string wanted_name = canonical_type_name(name);
  for (const TypeRow& row : kTypes)
    if (wanted_name == row.name) {
      const double tera = 1e12;
      return DeviceType{.name = row.name,
                        .memory = bytes_of_gib(row.memory_gib),
                        .peak = {row.fp64 * tera, row.fp32 * tera, row.tf32 * tera, row.bf16 * tera,
                                 row.fp16 * tera, row.fp8 * tera, row.fp4 * tera},
                        .memory_bytes_per_second = row.memory_tb_per_second * tera,
                        .watts = row.watts,
                        .gemm_efficiency = make_curve(row.gemm_efficiency)};
    }
  return std::nullopt;
}

std::vector<std::string> device_type_names() {
  std::vector<std::string> names;
  for (const TypeRow& row : kTypes) names.emplace_back(row.name);
  for (const Alias& alias : kAliases) names.emplace_back(alias.name);
  return names;
}

std::optional<DeviceType> find_type_by_vendor_name(std::string_view vendor_name) {
  const std::string name = lower(vendor_name);
  std::string longest;
  for (const std::string& known : device_type_names())
    if (known != "cpu" && known.size() > longest.size() && name.find(known) != std::string::npos)
      longest = known;
  return longest.empty() ? std::nullopt : find_device_type(longest);
}

NodeGroup standard_group(std::string_view type_name, int type, int num_devices) {
  const std::string wanted_name = canonical_type_name(type_name);
  for (const NodeRow& row : kNodes) {
    if (wanted_name != row.type) continue;
    const auto link = [](double gb_per_second, double microseconds, std::span<const CurvePoint> messages) {
      return LinkSpec{gb_per_second * 1e9, Seconds(microseconds * 1e-6), make_curve(messages)};
    };
    NodeGroup group;
    group.type = type;
    group.num_devices = num_devices;
    // Fewer devices than usual describe a smaller node, not a partly empty one.
    group.devices_per_node = std::min(row.devices_per_node, num_devices);
    group.devices_per_domain = num_devices < row.devices_per_node
                                   ? std::min(row.devices_per_domain, num_devices)
                                   : row.devices_per_domain;
    group.domain_link = link(row.domain_gb_per_second, row.domain_microseconds, kFastMessages);
    group.node_link = link(row.pcie_gb_per_second, 10, kFastMessages);
    group.host_link = link(row.pcie_gb_per_second, 10, kFastMessages);
    group.host_memory = bytes_of_gib(row.host_memory_gib);
    group.network.nics_per_node = row.nics;
    group.network.nic = link(row.nic_gbit_per_second / 8, row.network_microseconds, kNetworkMessages);
    return group;
  }
  refuse_type(type_name, "cluster");
}

bool looks_like_cluster_name(std::string_view name) {
  for (const std::string& part : split(name, '+'))
    if (!split_part(trim(part))) return false;
  return true;
}

namespace {

// Parses and checks one part of a cluster name, such as "h100x512".
std::pair<DeviceType, int> read_part(std::string_view text, const std::string& source) {
  // "rtx4090" is a device type, not 4,090 devices of type "rt".
  const bool is_type_alone = find_device_type(text).has_value();
  const auto part = split_part(text);
  if (is_type_alone || !part)
    throw UserError("{}: {} has no device count; expected TYPExCOUNT, such as h100x512", source,
                    in_quotes(text));
  const auto type = find_device_type(part->type);
  if (!type) refuse_type(part->type, source);
  const int count = part->count.size() > 7 ? INT_MAX : std::stoi(part->count);
  if (count < 1 || count > kMaxDevices)
    throw UserError("{}: expected 1 to {} devices, got {}", source, kMaxDevices, in_quotes(part->count, 20));
  return {*type, count};
}

int find_or_add(std::vector<DeviceType>& types, const DeviceType& type) {
  const auto match = std::find_if(types.begin(), types.end(),
                                  [&](const DeviceType& known) { return known.name == type.name; });
  const auto index = match - types.begin();
  if (match == types.end()) types.push_back(type);
  return static_cast<int>(index);
}

}  // namespace

HardwareProfile standard_cluster(const std::string& name) {
  constexpr std::size_t kMaxNameLength = 1000;
  const std::string source = "cluster " + in_quotes(name);
  if (name.size() > kMaxNameLength)
    throw UserError("{}: the name is longer than {} characters", source, kMaxNameLength);
  HardwareProfile profile;
  profile.name = lower(name);
  for (const std::string& text : split(profile.name, '+')) {
    const auto [type, count] = read_part(trim(text), source);
    const int index = find_or_add(profile.types, type);
    profile.groups.push_back(standard_group(type.name, index, count));
  }
  validate(profile, source);
  return profile;
}

}  // namespace optimus
