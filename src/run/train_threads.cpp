// Implements train_threads.h.
#include "run/train_threads.h"

#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "comm/thread_comm.h"
#include "engine/device.h"
#include "launch/listed_ranks.h"
#include "run/training.h"
#include "run/worker.h"

namespace optimus {
namespace {

// Remembers the user's interrupt until all ranks agree to end.
class InterruptSink final : public EventSink {
 public:
  explicit InterruptSink(EventSink& events) : events_(events) {}
  void report(const Event& event) override {
    try {
      events_.report(event);
    } catch (const Interrupted&) {
      is_end_requested = true;
    }
  }
  std::atomic<bool> is_end_requested = false;

 private:
  EventSink& events_;
};

struct Closed {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

struct RankEnd {
  TrainResult result;
  std::exception_ptr failure;
  bool is_lost = false;  // the rank failed only because other ranks were lost
};

struct ThreadContext {
  at::Device device;
  int threads = 1;
  EventSink& events;
  StatusLine& line;
};

void run_rank(RankEnd& end, std::unique_ptr<Comm> comm, const ThreadContext& worker_id, const RankBody& body,
              const std::function<bool()>& is_end_requested, Seconds timeout) {
  try {
    const Group world{Role::world, {}};
    throw_if_failed(comm->connect(0, {&world, 1}, Deadline::after(kStartTimeout, "connecting")));
    StepAgreement agreement(*comm, timeout);
    end.result = body({*comm, worker_id.device, worker_id.threads, worker_id.events, worker_id.line,
                       agreement, is_end_requested});
    agreement.take();  // completes the last agreement, for which other ranks have already sent their votes
  } catch (const PeersLost&) {
    end.failure = std::current_exception(), end.is_lost = true;
  } catch (...) {
    end.failure = std::current_exception();
  }
}

// The result of rank 0. If ranks have failed, throws the failure of a rank that failed by itself rather
// than that of a rank that only lost contact to it.
TrainResult first_result(std::vector<RankEnd>& ends, const ListedRanks& listed) {
  std::exception_ptr why;
  for (const bool is_lost : {false, true})
    for (std::size_t rank = 0; rank < ends.size(); ++rank)
      if (ends[rank].failure && ends[rank].is_lost == is_lost && !why) {
        why = ends[rank].failure;
        listed.note(static_cast<int>(rank), "failed");
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
  const int share =
      options.threads > 0 ? static_cast<int>(options.threads) : std::max(1, num_cores() / num_ranks);
  if (num_ranks == 1) {
    const std::unique_ptr<Comm> comm = world.comm(0);
    const Group world_of_one{Role::world, {}};
    throw_if_failed(comm->connect(0, {&world_of_one, 1}, Deadline::after(kStartTimeout, "connecting")));
    StepAgreement agreement(*comm, options.timeout);
    // A single rank ends as soon as `events` throws.
    return body({*comm, parse_device(devices[0]), set_num_threads(share), events, line, agreement,
                 [] { return false; }});
  }
  InterruptSink asked(events);
  std::vector<RankEnd> ends(devices.size());
  const auto work = [&](int rank, EventSink& sink, StatusLine& said) {
    set_num_threads(share);
    std::unique_ptr<Comm> comm = world.comm(rank);
    const ThreadContext worker_id{parse_device(devices[static_cast<std::size_t>(rank)]), share, sink, said};
    run_rank(
        ends[static_cast<std::size_t>(rank)], std::move(comm), worker_id, body,
        [&] { return asked.is_end_requested.load(); }, options.timeout);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < num_ranks; ++rank)
    others.emplace_back([&, rank] {
      const std::unique_ptr<std::FILE, Closed> log(std::fopen(listed.log(rank).c_str(), "a"));
      StatusLine said = StatusLine::for_log(log != nullptr ? log.get() : stderr);
      NullSink quiet;
      work(rank, quiet, said);
    });
  work(0, asked, line);
  for (std::thread& other : others) other.join();
  return first_result(ends, listed);
}

}  // namespace optimus
