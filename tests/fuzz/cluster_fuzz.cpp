// Any text as a hardware file and as a cluster's name: a cluster or a UserError. An accepted text
// round-trips.
#include <cstdint>
#include <cstdlib>

#include "cluster/cluster.h"
#include "cluster/hardware_json.h"
#include "cluster/standard.h"

namespace {

void try_file(std::string_view text) {
  using namespace optimus;
  const HardwareProfile profile = hardware_from_json(parse_json(text, "fuzz.json"), "fuzz.json");
  if (!(hardware_from_json(Json(to_json(profile)), "again") == profile)) std::abort();
  const Cluster cluster(profile);
  const Device last{cluster.num_devices() - 1};
  if (!(cluster.link({0}, last).bytes_per_second > 0)) std::abort();
  if (cluster.node_of(last) != cluster.num_nodes() - 1) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    try_file(text);
  } catch (const optimus::UserError&) {
  }
  try {
    optimus::standard_cluster(text);
  } catch (const optimus::UserError&) {
  }
  return 0;
}
