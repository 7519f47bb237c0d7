// Implements train_threads.h.
#include "run/train_threads.h"

#include <exception>
#include <thread>

#include "base/error.h"
#include "comm/thread_comm.h"
#include "engine/device.h"
#include "launch/listed_ranks.h"
#include "run/worker.h"

namespace optimus {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

struct RankEnd {
  TrainResult result;
  std::exception_ptr failure;
  bool is_lost = false;  // the rank failed only because other ranks were lost
};

void run_rank(RankEnd& end, const RankContext& rank, const RankBody& body) {
  try {
    const Group world{Role::world, {}};
    throw_if_failed(rank.comm.connect(0, {&world, 1}, Deadline::after(kStartTimeout, "connecting")));
    end.result = body(rank);
  } catch (const PeersLost&) {
    end.failure = std::current_exception(), end.is_lost = true;
  } catch (...) {
    end.failure = std::current_exception();
  }
}

// Returns the result of rank 0. If ranks have failed, throws the failure of the rank that caused it rather
// than that of a rank that only lost contact with it.
TrainResult first_result(std::vector<RankEnd>& ends, const ListedRanks& listed) {
  std::exception_ptr why;
  for (const bool is_lost : {false, true})
    for (std::size_t rank = 0; rank < ends.size(); ++rank)
      if (ends[rank].failure && ends[rank].is_lost == is_lost && !why) {
        why = ends[rank].failure;
        listed.append_to_log(static_cast<int>(rank), "failed");
      }
  if (why) std::rethrow_exception(why);
  return std::move(ends.front().result);
}

}  // namespace

TrainResult train_with_threads(const Path& run, const TrainOptions& options, int num_ranks, EventSink& events,
                               StatusLine& line, const RankBody& body) {
  const std::vector<std::string> devices = devices_of_ranks(options.device, num_ranks);
  const ListedRanks listed(run, devices);
  ThreadWorld world(num_ranks);
  const int threads_per_rank =
      options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, num_cores() / num_ranks);
  std::vector<RankEnd> ends(devices.size());
  const auto work = [&](int rank, EventSink& rank_events, StatusLine& rank_line) {
    const auto index = static_cast<std::size_t>(rank);
    const int threads = set_num_threads(threads_per_rank);
    const std::unique_ptr<Comm> comm = world.comm(rank);
    run_rank(ends[index], {*comm, parse_device(devices[index]), threads, rank_events, rank_line}, body);
  };
  std::vector<std::thread> rank_threads;
  for (int rank = 1; rank < num_ranks; ++rank)
    rank_threads.emplace_back([&, rank] {
      const std::unique_ptr<std::FILE, FileCloser> log(std::fopen(listed.log(rank).c_str(), "a"));
      StatusLine rank_line = StatusLine::for_log(log != nullptr ? log.get() : stderr);
      NullSink null_sink;
      work(rank, null_sink, rank_line);
    });
  work(0, events, line);
  for (std::thread& other : rank_threads) other.join();
  return first_result(ends, listed);
}

}  // namespace optimus
