// Hardware files: round trips, and messages for invalid files.
#include "cluster/hardware_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/error.h"
#include "cluster/open.h"
#include "cluster/random_profile.h"
#include "cluster/standard.h"

namespace optimus {
namespace {

HardwareProfile read(const std::string& text) {
  return hardware_from_json(parse_json(text, "lab.json"), "lab.json");
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(HardwareJson, RoundTrips) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const HardwareProfile profile = random_profile(seed);
    EXPECT_EQ(read(to_json(profile).dump()), profile) << seed;
  }
  for (const std::string& type : device_type_names()) {
    const HardwareProfile profile = standard_cluster(type + "x9");
    EXPECT_EQ(read(to_json(profile).dump(2)), profile) << type;
  }
}

TEST(HardwareJson, BuiltInTypesNeedOnlyCount) {
  HardwareProfile expected = standard_cluster("h100x16");
  expected.name = "";
  EXPECT_EQ(read(R"({"groups": [{"type": "h100", "devices": 16}]})"), expected);
  const HardwareProfile changed = read(R"({"groups": [{"type": "v100", "devices": 4, "devices_per_node": 2,
    "devices_per_domain": 1, "host_memory": "64GiB",
    "network": {"nics_per_node": 1, "bytes_per_second": 1.25e9, "latency_seconds": 3e-5,
    "oversubscription": 4}}],
    "missing_devices": [3, 1], "speed_factors": [[2, 0.5], [0, 1.5]]})");
  EXPECT_EQ(read(R"({"groups": [{"type": "h100", "devices": 16, "devices_per_node": 4}]})")
                .groups[0]
                .devices_per_domain,
            4);
  EXPECT_EQ(changed.groups[0].host_memory.value, 64LL << 30);
  EXPECT_EQ(changed.groups[0].domain_link.bytes_per_second, 150e9);
  EXPECT_EQ(changed.groups[0].network.oversubscription, 4);
  EXPECT_TRUE(changed.groups[0].network.nic.efficiency.points.empty());
  EXPECT_EQ(changed.missing_devices, (std::vector<int>{1, 3}));
  EXPECT_EQ(changed.speed_factors[0].device, 0);
}

TEST(HardwareJson, ErrorsNameKeyAndValue) {
  EXPECT_EQ(error_of(R"({"groups": [{"type": "h100", "devices": 16, "device_per_node": 2}]})"),
            "lab.json: groups[0]: unknown key 'device_per_node'; did you mean 'devices_per_node'?");
  EXPECT_EQ(error_of(R"({"groups": [{"type": "z100", "devices": 16}]})"),
            "lab.json: groups[0].type: 'z100' is neither in device_types nor a built-in type; did "
            "you mean 'h100'?");
  EXPECT_EQ(error_of(R"({"groups": [{"type": "h100", "devices": 0}]})"),
            "lab.json: groups[0].devices: expected an integer from 1 to 1000000, got '0'");
  EXPECT_EQ(error_of(R"({"groups": []})"), "lab.json: the number of groups: expected 1 to 10000, got 0");
  EXPECT_EQ(
      error_of(R"({"groups": [{"type": "h100", "devices": 8, "devices_per_domain": 3}]})"),
      "lab.json: groups[0]: devices_per_domain: expected a divisor or multiple of devices_per_node 8, got 3");
  EXPECT_EQ(error_of(R"({"groups": [{"type": "h100", "devices": 8, "island": 1}]})"),
            "lab.json: expected islands numbered from 0 without gaps, got 1 islands up to number 1");
  EXPECT_EQ(error_of(R"({"groups": [{"type": "h100", "devices": 8}], "missing_devices": [8]})"),
            "lab.json: a device in missing_devices: expected 0 to 7, got 8");
}

TEST(HardwareJson, RejectsMaliciousFiles) {
  const char* bad[] = {
      "[]",
      "{}",
      "3",
      R"({"groups": 3})",
      R"({"groups": [3]})",
      R"({"groups": [{}]})",
      R"({"groups": [{"type": 3, "devices": 1}]})",
      R"({"groups": [{"type": "h100", "devices": 1e9}]})",
      R"({"groups": [{"type": "h100", "devices": 8, "host_memory": "lots"}]})",
      R"({"groups": [{"type": "h100", "devices": 8, "domain_link": {}}]})",
      R"({"groups": [{"type": "h100", "devices": 8, "domain_link": {"bytes_per_second": -1,
        "latency_seconds": 0}}]})",
      R"({"groups": [{"type": "h100", "devices": 8}], "missing_devices": [1, 1]})",
      R"({"groups": [{"type": "h100", "devices": 1}], "missing_devices": [0]})",
      R"({"groups": [{"type": "h100", "devices": 8}], "speed_factors": [[1, 0]]})",
      R"({"groups": [{"type": "h100", "devices": 8}], "speed_factors": [[1]]})",
      R"({"groups": [{"type": "h100", "devices": 8}], "island_links": [{"islands": [0, 0],
        "bytes_per_second": 1, "latency_seconds": 0}]})",
      R"({"device_types": [{"name": "x"}], "groups": [{"type": "x", "devices": 8}]})",
      R"({"groups": [{"type": "h100", "devices": 600000}, {"type": "h100", "devices": 600000}]})",
  };
  for (const char* text : bad) EXPECT_NE(error_of(text), "") << text;
  std::string many = R"({"groups": [{"type": "h100", "devices": 8}], "missing_devices": [0)";
  for (int i = 0; i < 1'000'001; ++i) many += ",0";
  EXPECT_NE(error_of(many + "]}"), "");
}

TEST(HardwareJson, CustomTypesRequireLinks) {
  const std::string type =
      R"({"device_types": [{"name": "mine", "memory": "16GiB", "peak_flops": {"fp32": 1e13},
    "memory_bytes_per_second": 1e11}], "groups": [{"type": "mine", "devices": 4, "devices_per_node": 2)";
  EXPECT_EQ(error_of(type + "}]}"), "lab.json: groups[0].domain_link is missing");
  const std::string link = R"({"bytes_per_second": 1e9, "latency_seconds": 1e-5})";
  EXPECT_EQ(
      error_of(type + R"(, "domain_link": )" + link + R"(, "node_link": )" + link + R"(, "host_link": )" +
               link +
               R"(, "network": {"nics_per_node": 1, "bytes_per_second": 1e9, "latency_seconds": 1e-5}}]})"),
      "");
}

TEST(OpenCluster, NamesClusterAfterFile) {
  const Path file = Path(testing::TempDir()) / "my-lab.json";
  std::ofstream(file) << R"({"groups": [{"type": "a6000", "devices": 4}]})";
  EXPECT_EQ(open_cluster(file.string()).name(), "my-lab");
  std::ofstream(file) << "{";
  EXPECT_THROW(open_cluster(file.string()), UserError);
  std::filesystem::remove(file);
  EXPECT_THROW(open_cluster(file.string()), UserError);
  EXPECT_THROW(open_cluster(testing::TempDir()), UserError);
}

}  // namespace
}  // namespace optimus
