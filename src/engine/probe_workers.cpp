// Implements probe_workers() of probe_links.h. Two ranks alternately compute and gather, using the
// communication layer of training runs (comm/c10d_comm.h). The time that a gather adds to one turn of
// computing and gathering is its cost in training, including wake-up and waiting for the slower rank.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "comm/c10d_comm.h"
#include "engine/probe_links.h"

namespace optimus {
namespace {

constexpr double kTurnSeconds = 5e-3;  // seconds of computation, about one kernel of a small model
constexpr int kNumTurns = 100;
constexpr double kSizes[] = {256, 4 << 20};  // bytes that each rank contributes

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Multiplies the elements of a vector that fits into the cache. Each call does the same amount of work.
class ProbeWork {
 public:
  ProbeWork() : values_(16384, 1.5F) {
    const double begin_time = now();
    for (; now() - begin_time < kTurnSeconds; ++rounds_) round();
  }
  void run() {
    for (int i = 0; i < rounds_; ++i) round();
  }

 private:
  void round() {
    for (float& value : values_) value = value * 0.999F + 0.001F;
  }
  std::vector<float> values_;
  int rounds_ = 0;
};

// Returns the seconds of a turn, with a gather of `count` bytes from each rank, or without communication if
// `count` is 0.
double turn_seconds(Comm& comm, ProbeWork& probe_work, std::int64_t count) {
  const Group world{Role::world, {}};
  const at::Tensor own_part = at::empty({std::max<std::int64_t>(count, 1)}, at::kByte);
  const at::Tensor gathered = at::empty({2 * own_part.numel()}, at::kByte);
  const auto gather = [&] {
    throw_if_failed(comm.all_gather(world, own_part, gathered, "probe")
                        ->wait(Deadline::after(Seconds(10), "a gather of the probe")));
  };
  gather();
  const double begin_time = now();
  for (int i = 0; i < kNumTurns; ++i) {
    probe_work.run();
    if (count > 0) gather();
  }
  return (now() - begin_time) / kNumTurns;
}

std::vector<std::pair<double, double>> measure_gathers(Comm& comm) {
  const Group world{Role::world, {}};
  throw_if_failed(comm.connect(0, {&world, 1}, Deadline::after(Seconds(10), "connecting the probe")));
  ProbeWork probe_work;
  const double compute_seconds = turn_seconds(comm, probe_work, 0);
  std::vector<std::pair<double, double>> result;
  for (const double size : kSizes) {
    const double seconds = turn_seconds(comm, probe_work, static_cast<std::int64_t>(size)) - compute_seconds;
    result.emplace_back(size, std::max(seconds, 1e-6));
  }
  return result;
}

}  // namespace

LinkSpec probe_workers(EventSink& events) {
  events.report(Progress{"measuring gathers between workers", 0, 1, "probe"});
  const StoreServer store;
  std::vector<std::pair<double, double>> seconds;
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, rank] {
        try {
          const std::unique_ptr<Comm> comm = value_or_throw(
              make_process_comm({.rank = rank, .size = 2, .store = {.port = store.port(), .token = "probe"}},
                                Deadline::after(Seconds(10), "joining the probe")));
          std::vector<std::pair<double, double>> rank_seconds = measure_gathers(*comm);
          if (rank == 0) seconds = std::move(rank_seconds);
        } catch (const std::exception& exception) {
          errors[static_cast<std::size_t>(rank)] = exception.what();
        }
      });
  }
  for (const std::string& error : errors)
    if (!error.empty()) throw RuntimeFailure("cannot measure gathers between workers: {}", error);
  // The time of a turn varies more than the times of small sizes differ, so the result is a straight line
  // from the smallest to the largest size.
  const auto& [min_bytes, latency] = seconds.front();
  const auto& [max_bytes, max_seconds] = seconds.back();
  return {(max_bytes - min_bytes) / std::max(max_seconds - latency, 1e-6), Seconds(latency), {}};
}

}  // namespace optimus
