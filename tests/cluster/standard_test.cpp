// Names of built-in hardware.
#include "cluster/standard.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cluster/hardware_json.h"
#include "cluster/open.h"

namespace optimus {
namespace {

std::string name_error(const std::string& name) {
  try {
    open_cluster(name);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Standard, EveryTypeMakesAValidCluster) {
  for (const std::string& name : device_type_names())
    for (const char* count : {"x1", "x8", "x12", "x100000"}) EXPECT_EQ(name_error(name + count), "") << name;
}

TEST(Standard, NodesAndDomains) {
  const Cluster h100 = open_cluster("H100x12");
  EXPECT_EQ(h100.num_devices(), 12);
  EXPECT_EQ(h100.num_nodes(), 2);
  EXPECT_EQ(h100.link({0}, {7}).kind, LinkClass::domain);
  EXPECT_EQ(h100.link({7}, {8}).kind, LinkClass::network);
  const Cluster gb200 = open_cluster("gb200x144");
  EXPECT_EQ(gb200.num_nodes(), 36);
  EXPECT_EQ(gb200.num_domains(), 2);
  EXPECT_EQ(gb200.link({0}, {71}).kind, LinkClass::domain);
  EXPECT_EQ(gb200.link({71}, {72}).kind, LinkClass::network);
  const Cluster rtx = open_cluster("rtx4090x16");
  EXPECT_EQ(rtx.link({0}, {7}).kind, LinkClass::node);
  EXPECT_EQ(open_cluster("cpux4").num_nodes(), 1);
  EXPECT_EQ(open_cluster("cpux4").group_of({0}).devices_per_node, 4);
  EXPECT_EQ(open_cluster("gb200x3").link({0}, {2}).kind, LinkClass::domain);
}

TEST(Standard, MergesEqualTypesAndAliases) {
  const Cluster cluster = open_cluster("a100x16+v100x32+a100-80x8");
  EXPECT_EQ(cluster.profile().types.size(), 2U);
  EXPECT_EQ(cluster.profile().groups.size(), 3U);
  EXPECT_EQ(cluster.type_of({50}).name, "a100-80");
  EXPECT_EQ(find_device_type("v100")->memory.value, 32LL << 30);
}

TEST(Standard, SuggestsNearestType) {
  EXPECT_EQ(name_error("h1000x8").find("cluster 'h1000x8': 'h1000' is not a known device type; did you "
                                       "mean 'h100'?; known types are v100-16, "),
            0U)
      << name_error("h1000x8");
  EXPECT_EQ(name_error("rtx4090"),
            "cluster 'rtx4090': 'rtx4090' has no device count; expected TYPExCOUNT, such as h100x512");
  EXPECT_EQ(name_error("h100x0"), "cluster 'h100x0': expected 1 to 1000000 devices, got '0'");
  EXPECT_EQ(name_error("h100x1000001"),
            "cluster 'h100x1000001': expected 1 to 1000000 devices, got '1000001'");
  EXPECT_EQ(name_error("lab").find("cluster 'lab': expected a file, a name such as h100x512"), 0U);
  EXPECT_NE(name_error("h100x99999999999999999999999"), "");
  EXPECT_NE(name_error("h100x600000+h100x600000"), "");
  for (const char* name :
       {"", "x", "h100", "h100x", "x8", "h100x8+", "+", "h100x-1", "h100x8x", "no-such-file.json"})
    EXPECT_NE(name_error(name), "") << name;
  EXPECT_NE(name_error(fmt::format("{:x>100000}x8", "")), "");
}

TEST(Open, OpensMeasuredMachine) {
  const Path folder = Path(::testing::TempDir()) / "optimus-here";
  std::filesystem::remove_all(folder);
  ::setenv("XDG_CACHE_HOME", folder.c_str(), 1);
  EXPECT_NE(name_error("here").find("optimus profile --hardware"), std::string::npos);
  std::filesystem::create_directories(measured_cluster_path().parent_path());
  HardwareProfile profile = standard_cluster("h100x8");
  profile.types[0].kernels.emplace_back().tables["rope"] = {{{1, 2}}, {3, 4}};
  RealFileSystem files;
  value_or_throw(write_atomically(files, measured_cluster_path(), to_json(profile).dump()));
  EXPECT_EQ(open_cluster("here").profile(), profile);
  ::unsetenv("XDG_CACHE_HOME");
}

TEST(Standard, FindsTypesByVendorName) {
  EXPECT_EQ(find_type_by_vendor_name("NVIDIA H200")->name, "h200");
  EXPECT_EQ(find_type_by_vendor_name("NVIDIA A100-SXM4-80GB")->name, "a100-80");
  EXPECT_EQ(find_type_by_vendor_name("NVIDIA GB200")->name, "gb200");
  EXPECT_FALSE(find_type_by_vendor_name("Neoverse-N1"));
}

}  // namespace
}  // namespace optimus
