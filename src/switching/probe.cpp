// Implements probe.h.
#include "switching/probe.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>

namespace optimus {
namespace {

constexpr int kSyncTag = 0x7fb3, kMessageTag = 0x7fb4;  // not used by other messages
// Larger messages reduce the effect of short bursts above a link's sustained bandwidth.
constexpr std::int64_t kMinMessageBytes = 1 << 17, kMaxMessageBytes = 1 << 25, kGrowth = 4;
constexpr double kMinMessageSeconds = 8e-3;

// Sends and receives at the same time. The peer's data is written to `incoming`.
void exchange(Comm& comm, int peer, const at::Tensor& outgoing, const at::Tensor& incoming, int tag,
              const Deadline& deadline) {
  const auto send = comm.send(peer, outgoing, tag, "a link probe");
  const auto receive = comm.receive(peer, incoming, tag, "a link probe");
  throw_if_failed(receive->wait(deadline));
  throw_if_failed(send->wait(deadline));
}

// Returns the time of a simultaneous exchange in seconds. Both ends return the larger of their two
// measurements.
double message_seconds(Comm& comm, int peer, std::int64_t bytes, const Deadline& deadline) {
  at::Tensor own_seconds = at::zeros({1}, at::kDouble), peer_seconds = at::zeros({1}, at::kDouble);
  const at::Tensor outgoing = at::zeros({bytes}, at::kByte), incoming = at::zeros({bytes}, at::kByte);
  exchange(comm, peer, own_seconds, peer_seconds, kSyncTag, deadline);  // returns when both ends are ready
  const auto begin_time = Deadline::Clock::now();
  exchange(comm, peer, outgoing, incoming, kMessageTag, deadline);
  *own_seconds.data_ptr<double>() =
      std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
  exchange(comm, peer, own_seconds, peer_seconds, kSyncTag, deadline);
  return std::max(*own_seconds.const_data_ptr<double>(), *peer_seconds.const_data_ptr<double>());
}

struct PairTime {
  double seconds = 0, bytes = 0;
  double per_byte() const { return seconds / bytes; }
};
PairTime probe_pair(Comm& comm, int peer, const Deadline& deadline) {
  std::int64_t bytes = kMinMessageBytes;
  double seconds = message_seconds(comm, peer, bytes, deadline);
  while (seconds < kMinMessageSeconds && bytes < kMaxMessageBytes) {
    bytes *= kGrowth;
    seconds = message_seconds(comm, peer, bytes, deadline);
  }
  // Measure once more and use the faster result, because other load on the two nodes can only slow messages
  // down.
  return {std::min(seconds, message_seconds(comm, peer, bytes, deadline)), static_cast<double>(bytes)};
}

// The first rank of each node.
std::vector<int> representatives_of(const std::vector<int>& node_of_rank) {
  std::vector<int> representatives(
      static_cast<std::size_t>(*std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1), -1);
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank)
    if (int& representative = representatives[static_cast<std::size_t>(node_of_rank[rank])];
        representative < 0)
      representative = static_cast<int>(rank);
  return representatives;
}

}  // namespace

int num_probe_rounds(int num_nodes) {
  if (num_nodes < 2) return 0;
  const int max_rounds = num_nodes + num_nodes % 2 - 1;
  return std::min(max_rounds, 2 + static_cast<int>(std::bit_width(static_cast<unsigned>(num_nodes - 1))));
}

// The first rounds of a round-robin tournament (the circle method).
std::optional<int> probe_partner(int node, int round, int num_nodes) {
  // Number of nodes without the one in the middle of the circle.
  const int others = num_nodes + num_nodes % 2 - 1;
  int partner = 0;
  if (node == others) {
    // The node i that would be paired with itself, 2 i = round (mod others), is paired with the middle node.
    partner = (round % 2 == 0 ? round : round + others) / 2;
  } else {
    partner = ((round - node) % others + others) % others;
    if (partner == node) partner = others;
  }
  return partner < num_nodes ? std::optional(partner) : std::nullopt;
}

namespace {

void probe_networks(Comm& comm, const std::vector<int>& nodes, int max_rounds, const Deadline& deadline,
                    ProbeResult& result) {
  const std::vector<int> representatives = representatives_of(nodes);
  const int num_nodes = static_cast<int>(representatives.size()),
            own_node = nodes[static_cast<std::size_t>(comm.rank())];
  PairTime best;
  if (representatives[static_cast<std::size_t>(own_node)] == comm.rank())
    for (int round = 0; round < std::min(max_rounds, num_probe_rounds(num_nodes)); ++round)
      if (const auto partner = probe_partner(own_node, round, num_nodes)) {
        const PairTime pair = probe_pair(comm, representatives[static_cast<std::size_t>(*partner)], deadline);
        if (best.bytes == 0 || pair.per_byte() < best.per_byte()) best = pair;
      }
  at::Tensor fastest = at::zeros({2, num_nodes}, at::kDouble);
  auto* const values = fastest.data_ptr<double>();
  if (best.bytes > 0) values[own_node] = best.per_byte(), values[num_nodes + own_node] = best.bytes;
  throw_if_failed(
      comm.all_reduce({Role::world, {}}, fastest, ReduceOp::sum, "network times")->wait(deadline));
  result.network.assign(values, values + num_nodes),
      result.bytes.assign(values + num_nodes, values + 2 * num_nodes);
}

// Returns the time in seconds of a GEMM that has the same size on all devices. The GEMM is repeated until the
// total time is long enough to reveal a slow device.
double gemm_seconds(at::Device device) {
  constexpr double kMinGemmSeconds = 30e-3;
  const std::int64_t size = device.is_cuda() ? 2048 : 256;
  const int calls_per_check = device.is_cuda() ? 64 : 8;
  const auto matrix =
      at::ones({size, size}, at::TensorOptions(device).dtype(device.is_cuda() ? at::kBFloat16 : at::kFloat));
  const auto compute = [&](int count) {
    at::Tensor result;
    for (int i = 0; i < count; ++i) result = at::mm(matrix, matrix);
    return result.flatten()[0].item<float>();  // waits for the device
  };
  (void)compute(1);  // warm-up
  const auto begin_time = Deadline::Clock::now();
  double seconds = 0;
  int count = 0;
  for (; seconds < kMinGemmSeconds; count += calls_per_check) {
    (void)compute(calls_per_check);
    seconds = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
  }
  return seconds / count;
}

std::vector<double> probe_devices(Comm& comm, at::Device device, const Deadline& deadline) {
  at::Tensor seconds = at::zeros({comm.size()}, at::kDouble);
  seconds.data_ptr<double>()[comm.rank()] = gemm_seconds(device);
  throw_if_failed(comm.all_reduce({Role::world, {}}, seconds, ReduceOp::sum, "device times")->wait(deadline));
  const auto* const values = seconds.const_data_ptr<double>();
  return {values, values + comm.size()};
}

// Measures an all-reduce twice and records the faster measurement. Each measurement is the time of the
// slowest rank, so the result is the same on all ranks.
void probe_ring(Comm& comm, const Deadline& deadline, ProbeResult& result) {
  constexpr double kMinRingSeconds = 20e-3;
  const auto sum = [&](std::int64_t bytes) {
    at::Tensor tensor = at::zeros({bytes / 8}, at::kDouble), seconds = at::zeros({1}, at::kDouble);
    throw_if_failed(comm.all_reduce({Role::world, {}}, seconds, ReduceOp::sum, "a barrier")->wait(deadline));
    const auto begin_time = Deadline::Clock::now();
    throw_if_failed(
        comm.all_reduce({Role::world, {}}, tensor, ReduceOp::sum, "a ring probe")->wait(deadline));
    *seconds.data_ptr<double>() = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
    throw_if_failed(
        comm.all_reduce({Role::world, {}}, seconds, ReduceOp::maximum, "the ring's time")->wait(deadline));
    return *seconds.const_data_ptr<double>();
  };
  std::int64_t bytes = 2 * kMinMessageBytes;
  double seconds = sum(bytes);
  while (seconds < kMinRingSeconds && bytes < kMaxMessageBytes / kGrowth) seconds = sum(bytes *= kGrowth);
  result.ring_bytes = static_cast<double>(bytes), result.ring_seconds = std::min(seconds, sum(bytes));
}

}  // namespace

ProbeResult probe(Comm& comm, const ProbeSettings& settings, at::Device device, Seconds timeout) {
  const Deadline deadline = Deadline::after(timeout, "probing all machines");
  at::Tensor settings_tensor = at::zeros({comm.size() + 3}, at::kLong);
  auto *const nodes = settings_tensor.data_ptr<std::int64_t>(), *const request = nodes + comm.size();
  if (comm.rank() == 0) {
    ensure(std::ssize(settings.node_of_rank) == comm.size(),
           "probe settings: expected one node index for each rank");
    std::copy(settings.node_of_rank.begin(), settings.node_of_rank.end(), nodes);
    request[0] = settings.request.speeds, request[1] = settings.request.messages,
    request[2] = settings.request.ring;
  }
  throw_if_failed(
      comm.broadcast({Role::world, {}}, settings_tensor, 0, "the probe settings")->wait(deadline));
  ProbeResult result;
  if (request[0] != 0 || request[1] != 0)
    probe_networks(comm, {nodes, nodes + comm.size()}, request[0] != 0 ? comm.size() : 1, deadline, result);
  if (request[0] != 0) result.devices = probe_devices(comm, device, deadline);
  if (request[2] != 0) probe_ring(comm, deadline, result);
  return result;
}

}  // namespace optimus
