// Implements end_watch.h.
#include "run/end_watch.h"

#include <map>

#include "base/deadline.h"
#include "base/error.h"

namespace optimus {
namespace {

// Added to the timeout, because a machine that starts many processes is slow.
constexpr Seconds kStartMargin{5};
// Number of consecutive failures after which a store hosted by the run is considered lost. With etcd,
// attempts continue, because etcd may be restarted.
constexpr int kMaxStoreFailures = 3;

std::string report_key(const RendezvousResult& run, int rank) {
  return fmt::format("{}report/{}", run.prefix, rank);
}
// The report for a rank that could not write one. It lists the rank itself as missing.
WorkerReport report_of_lost(int rank) { return {WorkerReport::End::lost, "", {rank}, {}}; }
std::string heartbeat_key(const RendezvousResult& run, int rank) {
  return fmt::format("{}heartbeat/{}", run.prefix, rank);
}

}  // namespace

// Tracks how long the store and, on rank 0, the other ranks have been silent.
struct EndWatch::Silence {
  struct Heartbeat {
    std::string last;
    Deadline deadline;
  };
  std::map<int, Heartbeat> ranks;  // on rank 0: heartbeats of the other ranks, keyed by rank
  std::optional<Deadline> store;
  int num_failures = 0;
};

EndWatch::EndWatch(const RendezvousResult& run, Comm& comm, Seconds timeout, StopToken stop)
    : run_(run), comm_(comm), timeout_(timeout.value + kStartMargin.value), stop_(std::move(stop)) {
  value_or_throw(
      run_.store->set_last_will(run_.prefix + kEndedKey, fmt::format("rank {} exited", comm_.rank())));
  thread_ = std::thread([this] { watch(); });
}

EndWatch::~EndWatch() {
  is_stopping_ = true;
  thread_.join();
}

TrainResult EndWatch::guard(const std::function<TrainResult()>& work) {
  try {
    return work();
  } catch (const PeersLost&) {
    if (has_aborted_) return {.end = TrainEnd::stopped};
    throw;
  }
}

StopToken EndWatch::stop_token() {
  return StopToken([this] {
    // From the first step on, the other ranks notice by themselves if this rank exits. The last-will report
    // ensures that no rank waits for a report that will never be written.
    if (!has_stepped_.exchange(true))
      (void)run_.store->set_last_will(report_key(run_, comm_.rank()), text(report_of_lost(comm_.rank())));
    return stop_.requested();
  });
}

void EndWatch::watch() {
  Silence silence;
  while (!is_stopping_) {
    if (const std::string why = probe_store(silence); !why.empty()) return comm_.abandon(why);
    for (int i = 0; i < 10 && !is_stopping_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!has_stepped_ && stop_.is_requested()) {
        has_aborted_ = true;
        return comm_.abandon("interrupted");
      }
    }
  }
}

std::string EndWatch::probe_store(Silence& silence) {
  const Deadline response_deadline = Deadline::after(Seconds(0.5), "the store");
  const auto ended = run_.store->find(run_.prefix + kEndedKey);
  if (ended && *ended) return **ended;
  if (ended && run_.store->increment(heartbeat_key(run_, comm_.rank()))) {
    silence.num_failures = 0;
    silence.store.reset();
    if (comm_.rank() == 0 && !has_stepped_) report_silent_ranks(silence);
    return "";
  }
  // If the store is only silent, the process that hosts it may be stopped. --timeout limits how long ranks
  // wait for it.
  if (!response_deadline.has_passed()) ++silence.num_failures;
  if (run_.address.is_etcd) return "";
  if (silence.num_failures == kMaxStoreFailures) return "rank 0, which hosts the store, exited";
  if (!silence.store) silence.store = Deadline::after(timeout_, "the store");
  return silence.store->has_passed() && !has_stepped_ ? "rank 0, which hosts the store, does not respond"
                                                      : "";
}

void EndWatch::report_silent_ranks(Silence& silence) {
  for (int rank = 1; rank < comm_.size(); ++rank) {
    const auto heartbeat = run_.store->find(heartbeat_key(run_, rank));
    if (!heartbeat) return;
    const std::string value = heartbeat->value_or("");
    const auto [entry, is_new] = silence.ranks.try_emplace(
        rank, Silence::Heartbeat{value, Deadline::after(timeout_, "a rank to start")});
    if (!is_new && entry->second.last != value)
      entry->second = {value, Deadline::after(timeout_, "a rank to start")};
    if (!entry->second.deadline.has_passed()) continue;
    const PresentRank& present = run_.ranks[static_cast<std::size_t>(rank)];
    (void)run_.store->set(run_.prefix + kEndedKey,
                          fmt::format("rank {} (process {} on {}) did not respond during startup", rank,
                                      present.pid, present.host));
    return;
  }
}

bool publish_end(const RendezvousResult& run, int rank, const WorkerReport& report) {
  if (report.end == WorkerReport::End::failed || report.end == WorkerReport::End::lost)
    (void)run.store->set(run.prefix + kEndedKey, fmt::format("rank {} failed", rank));
  const bool is_published = run.store->set(report_key(run, rank), text(report)).has_value();
  (void)run.store->set_last_will("", "");
  return is_published;
}

std::optional<WorkerReport> published_end(const RendezvousResult& run, int rank) {
  const auto stored = run.store->find(report_key(run, rank));
  if (!stored || !*stored) return std::nullopt;
  try {
    return parse_worker_report(**stored);
  } catch (const UserError&) {  // a malformed report is treated as missing
    return std::nullopt;
  }
}

}  // namespace optimus
