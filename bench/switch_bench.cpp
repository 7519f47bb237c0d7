// Computes the data that a plan change moves on a cluster, and the time by link speed. Nothing is trained.
//
//   bench_switch MODEL PLAN_A PLAN_B [devices per host = 8] [GB/s inside = 450]
//                [GB/s outside, per device = 50] [fraction reached = 0.7]
//
// The fraction is the part of a link's bandwidth measured by bench/switch_bench.py --links.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "model/open.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "reshard/plan_change.h"

using namespace optimus;

namespace {

// Bytes that one rank sends and receives, inside its host and to other hosts: [0] sent, [1] received.
struct Traffic {
  double inside[2] = {}, outside[2] = {};
};

Traffic traffic_of(const PlanChange& change, int rank, int per_host) {
  Traffic traffic;
  for (const RankShare::Wave& wave : share_of(change, rank).waves)
    for (const RankShare::Operation& operation : wave.operations) {
      const TensorInfo& tensor = change.old_layout.tensors[static_cast<std::size_t>(operation.tensor)];
      const double bytes = static_cast<double>(operation.box.num_elements()) * tensor.bytes_per_element;
      const bool is_near = operation.peer.value / per_host == rank / per_host;
      (is_near ? traffic.inside : traffic.outside)[operation.is_send ? 0 : 1] += bytes;
    }
  return traffic;
}

}  // namespace

int main(int count, char** words) try {
  if (count < 4)
    throw UserError(
        "usage: bench_switch MODEL PLAN_A PLAN_B [devices per host] [GB/s inside] [GB/s outside] [fraction "
        "reached]");
  const auto number = [&](int at, double usual) { return count > at ? std::atof(words[at]) : usual; };
  const int per_host = static_cast<int>(number(4, 8));
  const double inside = number(5, 450) * 1e9, outside = number(6, 50) * 1e9, share = number(7, 0.7);
  const ModelSpec model = open_model(words[1]);
  const Plan from = read_plan(words[2]), to = read_plan(words[3]);
  const int ranks = std::max(num_devices(from), num_devices(to));
  const auto begin_time = std::chrono::steady_clock::now();
  const PlanChange change = change_plan(from, to, model, ranks);
  const RankShare first = share_of(change, 0);
  const double planned = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
  double seconds = 0, most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Traffic traffic = traffic_of(change, rank, per_host);
    for (const int way : {0, 1}) {
      seconds = std::max(seconds, traffic.inside[way] / inside + traffic.outside[way] / outside);
      most = std::max(most, traffic.inside[way] + traffic.outside[way]);
    }
  }
  fmt::print(
      "{} -> {}: {} devices, moved {} (lower bound {}), at most {} in or out of a device, headroom {}\n",
      short_text(from), short_text(to), ranks, text(change.moved), text(change.minimum),
      text(Bytes(static_cast<std::int64_t>(most))), text(change.spare_memory));
  fmt::print(
      "links at full speed {:.2f} s, at {:.0f} % {:.2f} s; planning takes {:.0f} ms per rank, {} waves\n",
      seconds, 100 * share, seconds / share, 1e3 * planned, first.waves.size());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_switch: {}\n", error.what());
  return 1;
}
