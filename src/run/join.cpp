// Implements join.h.
#include "run/join.h"

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <thread>

#include "base/error.h"
#include "base/event.h"
#include "base/time_stamp.h"
#include "comm/c10d_comm.h"
#include "elastic/heartbeat.h"
#include "elastic/membership_coordinator.h"
#include "elastic/preemption_notice.h"
#include "engine/device.h"
#include "launch/launched_memory.h"
#include "launch/store_file.h"
#include "observe/progress.h"
#include "run/elastic_rank.h"
#include "run/host_facts.h"
#include "run/process_rank.h"
#include "run/train_rank.h"
#include "run/worker.h"
#include "rundir/folder_lock.h"
#include "rundir/store_board.h"
#include "rundir/worker_list.h"
#include "store/socket.h"

namespace optimus {

std::vector<WorkerEntry> workers_by_id(const Path& run, const Membership& membership) {
  std::vector<WorkerEntry> result;
  for (const WorkerEntry& entry : listed_workers(run)) {
    if (entry.rank >= std::ssize(membership.worker_ids)) continue;
    const auto worker_id =
        static_cast<std::size_t>(membership.worker_ids[static_cast<std::size_t>(entry.rank)]);
    if (worker_id >= result.size()) result.resize(worker_id + 1);
    result[worker_id] = entry;
  }
  return result;
}

namespace {

constexpr Seconds kStoreTimeout{30}, kConnectTimeout{1};
constexpr Seconds kNextHostTimeout{20};  // for another process to take over after the host was killed

struct JoinReply {
  int worker_id = 0;
  MembershipChange order;
};

JoinReply parse_join_reply(const std::string& text) {
  JoinReply join_reply;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), join_reply.worker_id);
  const auto size = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || size >= text.size()) throw RuntimeFailure("the run's join reply is malformed");
  join_reply.order = parse_membership_change(text.substr(size + 1));
  return join_reply;
}

// Thrown if the store was lost before the run accepted this process. Another process hosts the run or is
// about to.
struct StoreLost {};

// Throws StoreLost.
JoinReply request_to_join(KeyStore& store, const std::string& prefix, const WorkerJoinRequest& self,
                          const JoinOptions& join, const StopToken& stop) {
  const auto request_number = store.increment(prefix + JoinKeys::counter());
  if (!request_number) throw StoreLost{};
  const JoinKeys keys{*request_number};
  if (!store.set(prefix + keys.request(), text(self))) throw StoreLost{};
  const auto join_reply = wait_for_key(store, prefix + keys.join_reply(),
                                       Deadline::after(join.timeout, "the run's join reply"), [&] {
                                         if (stop.is_requested()) throw Interrupted{};
                                       });
  if (!join_reply && !store.find(prefix + keys.request())) throw StoreLost{};
  if (!join_reply)
    throw RuntimeFailure("{} did not accept this worker: {}", join.run.string(), join_reply.error().why);
  return parse_join_reply(*join_reply);
}

struct OpenStore {
  RunStoreAddress address;
  std::shared_ptr<KeyStore> store;
};

// Finds the run's store through the run folder and retries, because the host may change meanwhile. Returns
// nullopt if the run has ended.
std::optional<OpenStore> find_run(const JoinOptions& join, const StopToken& stop) {
  if (!join.was_member) (void)read_store_file(join.run);  // fails immediately if the run cannot be joined
  // Several hosts may be lost one after the other. Ranks give up on a host that is only stopped after about
  // 16 s.
  constexpr Seconds kHostTimeout{90};
  const Seconds timeout = join.was_member ? join.timeout : kHostTimeout;
  const Deadline deadline = Deadline::after(timeout, "the run's store");
  std::optional<Deadline> next_host;
  while (!deadline.has_passed()) {
    if (stop.is_requested()) throw Interrupted{};
    try {
      const RunStoreAddress address = read_store_file(join.run);
      if (auto store = open_store(address.address, Deadline::after(kConnectTimeout, "the run's store")))
        return OpenStore{address, std::move(*store)};
    } catch (const ReportedError&) {  // no process hosts the run at the moment
    }
    // When a run ends, the store file is removed before the lock. A lost host leaves the file behind, and a
    // stopped host keeps the lock.
    const bool has_file = has_store_file(join.run), is_taken = FolderLock::is_taken(join.run);
    if (!has_file && !is_taken) return std::nullopt;
    if (has_file && is_taken)
      next_host.reset();
    else if (!next_host)
      next_host = Deadline::after(kNextHostTimeout, "another host of the run");
    if (next_host && next_host->has_passed()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  throw RuntimeFailure("{}: could not reach the run's store within {}", join.run.string(), text(timeout));
}

// All arguments must outlive the result.
LaunchedRankFacts facts_of_joining_worker(const OpenStore& store, const JoinOptions& join,
                                          const RunSpec& spec, const StopToken& stop,
                                          const JoinReply& join_reply) {
  const std::vector<int>& worker_ids = join_reply.order.membership.worker_ids;
  return {.store_address = store.address,
          .store = store.store,
          .address = store.store->own_address(),
          .worker_id = join_reply.worker_id,
          .worker_ids = {worker_ids.begin(), worker_ids.begin() + join_reply.order.num_staying},
          .order = join_reply.order,
          .folder = join.run,
          .stop = stop,
          .host_facts =
              [&join, &spec,
               device = named_device_facts(spec.options)](const std::optional<MembershipChange>& last) {
                RunHostOptions facts = host_facts_of(spec, join.run, device);
                facts.workers = workers_by_id(join.run, last->membership);
                return facts;
              },
          .is_one_host = is_loopback(store.address.address.host)};
}

// Throws ExcludedFromRun and StoreLost.
int train_until_end(const JoinOptions& join, TrainOptions& options, OptionTable& table, const StopToken& stop,
                    StatusLine& line) {
  const std::optional<OpenStore> run_store = find_run(join, stop);
  if (!run_store && !join.was_member) throw UserError("{}: no training is running", join.run.string());
  if (!run_store) {
    line.print("the run ended without this worker");
    return 0;
  }
  const RunStoreAddress& address = run_store->address;
  const std::shared_ptr<KeyStore>& store = run_store->store;
  const Path path = run_settings_path(join.run);
  const Json document = read_json(path);
  const std::string device = join.device.empty() ? choose_device("").str() : join.device;
  // Slow preparation comes before the join request, because the run does not wait for a worker that is not
  // ready.
  const RunSpec spec = read_run_settings(join.run, JsonView(document, path.string()),
                                         parse_device(device).is_cuda(), options, table);
  const StopToken with_notice = with_preemption_notice(stop, options.notice, process_environment());
  set_num_threads(join.threads);
  make_memory_of_joining_worker(options, join.run);
  JoinReply join_reply =
      request_to_join(*store, address.prefix, {::getpid(), host_name(), device}, join, with_notice);
  const int worker_id = join_reply.worker_id;
  line.print(fmt::format("joined {} as worker {}", join.run.string(), worker_id));
  (void)store->set_last_will(address.prefix + lost_key(worker_id), kEnded);
  std::optional<LaunchedElasticRank> launched;
  if (address.may_move)
    launched.emplace(facts_of_joining_worker(*run_store, join, spec, with_notice, join_reply));
  const std::shared_ptr<KeyStore> worker_store = launched ? launched->store() : store;
  const auto join_run = [&] {
    return value_or_throw(make_process_comm(
        {.rank = worker_id,
         .size = worker_id + 1,
         .store = {.address = store->own_address(), .prefix = address.prefix, .store = worker_store},
         .device = parse_device(device)},
        Deadline::after(kStoreTimeout, "joining the run")));
  };
  const WorkerReport report = report_of_work(join_run, stderr, line, [&](Comm& comm, StatusLine& rank_line) {
    StatusLineSink events(rank_line);
    RankContext rank{comm, parse_device(device), join.threads, events, rank_line, with_notice};
    if (launched) {
      launched->begin(comm);
      const std::shared_ptr<void> end_guard(nullptr,
                                            [&](void*) { launched->end(); });  // before the Comm is destroyed
      rank.open_board = [&] { return launched->open_board(); };
      rank.elastic = &*launched;
      return run_and_remove_memory(join.run, [&] { return train_rank(spec, rank); });
    }
    HostedElasticRank elastic(address, comm, worker_id, std::move(join_reply.order));
    rank.stop = with_notice.combined_with(elastic.stop_token());
    rank.open_board = [&] { return std::make_unique<StoreBoard>(store, address.prefix); };
    rank.elastic = &elastic;
    return train_rank(spec, rank);
  });
  if (!report.why.empty()) line.print(report.why);
  (void)worker_store->set(address.prefix + worker_report_key(worker_id), text(report));
  if (launched) launched->wait_for_others_to_end();
  return exit_code(report.end);
}

}  // namespace

int train_as_joining_worker(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                            const StopToken& stop, StatusLine& line) {
  std::signal(SIGPIPE, SIG_IGN);
  JoinOptions retry = join;
  while (true) {
    try {
      return train_until_end(retry, options, table, stop, line);
    } catch (const ExcludedFromRun&) {
      line.print("the other workers continued without this one; rejoining");
      retry.was_member = true;
    } catch (const StoreLost&) {
      line.print("the run's store was lost before the run accepted this worker; retrying");
      retry.was_member = true;
    }
  }
}

}  // namespace optimus
