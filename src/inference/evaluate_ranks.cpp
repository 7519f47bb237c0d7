// Implements evaluate_ranks.h.
#include "inference/evaluate_ranks.h"

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/thread_comm.h"
#include "engine/device.h"
#include "inference/weights.h"
#include "plan/layouts.h"
#include "switching/memory.h"

namespace optimus {
namespace {

constexpr Seconds kRankTimeout{600};

struct RankWork {
  LossSum total;
  std::exception_ptr failure;
  bool only_lost_peers = false;  // the rank failed only because other ranks were lost
};

// Throws UserError if the weights and activations of all ranks on a device exceed its free memory.
void refuse_too_large_ranks(const Plan& plan, const ModelSpec& model,
                            const std::vector<std::string>& devices) {
  const Layout weights = layout_of(plan, model, StateKind::weights);
  const RankIndex index(weights);
  std::map<std::string, Bytes> needed;
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    needed[devices[rank]] += bytes_of(weights, index, Rank{static_cast<int>(rank)}) +
                             plan_arena(compile(plan, model, static_cast<int>(rank))).bytes;
  for (const auto& [name, bytes] : needed) {
    const std::optional<Bytes> free = free_memory(parse_device(name));
    if (free && bytes > *free)
      throw UserError("{} with this plan needs {} on {}, which has only {} free", model.name, text(bytes),
                      name, text(*free));
  }
}

}  // namespace

LossSum on_ranks(const Plan& plan, const OpenedModel& model, const ComputeOptions& options,
                 const std::function<LossSum(Engine& engine, int rank)>& evaluate) {
  ensure_engine_supports(plan, model.spec);
  const int count = num_devices(plan);
  const std::vector<std::string> devices = devices_of_ranks(options.device, count);
  refuse_too_large_ranks(plan, model.spec, devices);
  const int threads =
      options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, num_cores() / count);
  ThreadWorld world(count);
  std::mutex load_mutex;
  std::vector<RankWork> ranks(devices.size());
  const auto run = [&](int rank) {
    RankWork& rank_work = ranks[static_cast<std::size_t>(rank)];
    try {
      set_num_threads(threads);
      const std::unique_ptr<Comm> comm = world.comm(rank);
      const at::Device device = parse_device(devices[static_cast<std::size_t>(rank)]);
      Parameters parameters(plan, model.spec, rank, device, StorageMode::weights);
      {
        // Ranks load one after another, so that only one tensor is in memory in addition to the weights.
        const std::lock_guard lock(load_mutex);
        NullSink null_sink;
        load_weights(*model.weights, parameters, null_sink);
      }
      Engine engine(plan, model.spec, parameters,
                    {.device = device,
                     .rank = rank,
                     .comm = count > 1 ? comm.get() : nullptr,
                     .timeout = kRankTimeout});
      if (count > 1)
        throw_if_failed(comm->connect(0, engine.groups(), Deadline::after(kRankTimeout, "connecting")));
      rank_work.total = evaluate(engine, rank);
    } catch (const PeersLost&) {
      rank_work.failure = std::current_exception(), rank_work.only_lost_peers = true;
    } catch (...) {
      rank_work.failure = std::current_exception();
    }
  };
  std::vector<std::thread> rank_threads;
  for (int rank = 1; rank < count; ++rank) rank_threads.emplace_back(run, rank);
  run(0);
  for (std::thread& other : rank_threads) other.join();
  for (const bool only_lost_peers : {false, true})
    for (const RankWork& rank : ranks)
      if (rank.failure && rank.only_lost_peers == only_lost_peers) std::rethrow_exception(rank.failure);
  return ranks.front().total;
}

}  // namespace optimus
