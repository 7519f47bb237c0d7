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
#include "elastic/notice.h"
#include "elastic/pulse.h"
#include "elastic/regrouping.h"
#include "engine/device.h"
#include "launch/launched_memory.h"
#include "launch/store_file.h"
#include "run/launched_seat.h"
#include "run/train_workers.h"
#include "run/training.h"
#include "run/worker.h"
#include "rundir/folder_lock.h"
#include "rundir/store_board.h"
#include "rundir/worker_list.h"
#include "store/socket.h"

namespace optimus {

std::vector<WorkerEntry> workers_by_seat(const Path& run, const Membership& membership) {
  std::vector<WorkerEntry> result;
  for (const WorkerEntry& entry : listed_workers(run)) {
    if (entry.rank >= std::ssize(membership.seats)) continue;
    const auto seat = static_cast<std::size_t>(membership.seats[static_cast<std::size_t>(entry.rank)]);
    if (seat >= result.size()) result.resize(seat + 1);
    result[seat] = entry;
  }
  return result;
}

namespace {

constexpr Seconds kStorePatience{30}, kTryPatience{1};
constexpr Seconds kNextHostPatience{20};  // for another process to host the run after its host was killed

struct Welcome {
  int seat = 0;
  RegroupOrder order;
};

Welcome parse_welcome(const std::string& text) {
  Welcome welcome;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), welcome.seat);
  const auto size = static_cast<std::size_t>(rest - text.data());
  if (problem != std::errc() || size >= text.size()) throw UserError("the run's join reply is malformed");
  welcome.order = parse_regroup_order(text.substr(size + 1));
  return welcome;
}

// The store was lost before the run accepted this process. Another process hosts the run now, or soon will.
struct StoreLost {};

// Throws StoreLost.
Welcome ask_to_join(KeyStore& store, const std::string& prefix, const Comer& self, const JoinOptions& join,
                    const WorkerSignals& signals) {
  const auto number = store.count(prefix + JoinKeys::counter());
  if (!number) throw StoreLost{};
  const JoinKeys keys{*number};
  if (!store.set(prefix + keys.comer(), text(self))) throw StoreLost{};
  const auto welcome = wait_for_key(store, prefix + keys.welcome(),
                                    Deadline::after(join.patience, "the run's join reply"), [&] {
                                      if (signals.is_interrupted() || signals.is_told_to_leave())
                                        throw Interrupted{};
                                    });
  if (!welcome && !store.find(prefix + keys.comer())) throw StoreLost{};
  if (!welcome) throw UserError("{} did not accept this worker: {}", join.run.string(), welcome.error().why);
  return parse_welcome(*welcome);
}

struct OpenStore {
  RunStorePlace where;
  std::shared_ptr<KeyStore> store;
};

// Finds the store of the run from its folder; the host may have changed by the time it is reached. Returns
// nothing if the run has ended.
std::optional<OpenStore> find_run(const JoinOptions& join, const WorkerSignals& signals) {
  if (!join.was_in) (void)read_store_file(join.run);  // fails at once for a run that cannot be joined
  // Several hosts may be lost one after the other; a host that is only stopped is given up after about 16 s.
  constexpr Seconds kHostPatience{90};
  const Seconds patience = join.was_in ? join.patience : kHostPatience;
  const Deadline deadline = Deadline::after(patience, "the run's store");
  std::optional<Deadline> next_host;
  while (!deadline.has_passed()) {
    if (signals.is_interrupted() || signals.is_told_to_leave()) throw Interrupted{};
    try {
      const RunStorePlace where = read_store_file(join.run);
      if (auto store = open_store(where.place, Deadline::after(kTryPatience, "the run's store")))
        return OpenStore{where, std::move(*store)};
    } catch (const UserError&) {  // no process hosts the run at the moment
    }
    // At the end of a run the store file is removed first, then the lock. A host that is lost leaves the
    // file; one that is stopped keeps the lock.
    const bool has_file = has_store_file(join.run), is_taken = FolderLock::is_taken(join.run);
    if (!has_file && !is_taken) return std::nullopt;
    if (has_file && is_taken)
      next_host.reset();
    else if (!next_host)
      next_host = Deadline::after(kNextHostPatience, "another host of the run");
    if (next_host && next_host->has_passed()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  throw UserError("{}: could not reach its store within {}", join.run.string(), text(patience));
}

// All arguments must outlive the result.
LaunchedSeatFacts seat_facts_of_comer(const OpenStore& store, const JoinOptions& join, const PreparedRun& run,
                                      const TrainOptions& options, const WorkerSignals& signals,
                                      const Welcome& welcome) {
  const std::vector<int>& seats = welcome.order.membership.seats;
  return {
      .where = store.where,
      .store = store.store,
      .address = store.store->own_address(),
      .seat = welcome.seat,
      .seats = {seats.begin(), seats.begin() + welcome.order.num_staying},
      .order = welcome.order,
      .folder = join.run,
      .signals = signals,
      .host_facts =
          [&join, &run, &options, device = facts_of_own(options)](const std::optional<RegroupOrder>& last) {
            RunHostFacts facts = host_facts_of(run, options, join.run, device);
            facts.workers = workers_by_seat(join.run, last->membership);
            return facts;
          },
      .is_one_host = is_loopback(store.where.place.host)};
}

}  // namespace

ElasticSeat::ElasticSeat(const RunStorePlace& where, Comm& comm, int seat, const WorkerSignals& signals,
                         StatusLine& line, std::optional<RegroupOrder> order)
    : watch_(value_or_throw(open_store(where.place, Deadline::after(kStorePatience, "the run's store"))),
             where.prefix, comm, seat, order ? order->membership.generation : 0),
      elastic_{.seat = seat,
               .leaves = signals.is_told_to_leave,
               .wants_to_meet =
                   [this, leaves = signals.is_told_to_leave] { return watch_.wants_to_meet() || leaves(); },
               .regrouped = [this](const RegroupOrder& next) { watch_.regrouped(next.membership); },
               .speak_to_people = [&line] { line.speak_to_people(); },
               .beacon = watch_.beacon(),
               .order = std::move(order)} {}

namespace {

// Throws LeftBehind and StoreLost.
int train_until_left(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                     const WorkerSignals& signals, StatusLine& line) {
  const std::optional<OpenStore> found = find_run(join, signals);
  if (!found && !join.was_in) throw UserError("{}: no training is running", join.run.string());
  if (!found) {
    line.print("the run ended without this worker");
    return 0;
  }
  const RunStorePlace& where = found->where;
  const std::shared_ptr<KeyStore>& store = found->store;
  const Path path = hand_over_path(join.run);
  const Json document = read_json(path);
  const std::string device = join.device.empty() ? choose_device("").str() : join.device;
  // Slow preparations come first, because the run does not wait for a worker that is not ready.
  const PreparedRun run = take_run_over(join.run, JsonView(document, path.string()),
                                        parse_device(device).is_cuda(), options, table);
  const WorkerSignals told = with_notice(signals, options.notice, process_environment());
  set_num_threads(join.threads);
  make_memory_of_comer(options, join.run);
  Welcome welcome = ask_to_join(*store, where.prefix, {::getpid(), host_name(), device}, join, told);
  line.print(fmt::format("joined {} as worker {}", join.run.string(), welcome.seat));
  (void)store->set_will(where.prefix + gone_key(welcome.seat), kEnded);
  std::optional<LaunchedSeat> moving;
  if (where.may_move) moving.emplace(seat_facts_of_comer(*found, join, run, options, told, welcome));
  const std::shared_ptr<KeyStore> own = moving ? moving->store() : store;
  const auto join_run = [&] {
    return value_or_throw(
        make_process_comm({.rank = welcome.seat,
                           .size = welcome.seat + 1,
                           .store = {.address = store->own_address(), .prefix = where.prefix, .store = own},
                           .device = parse_device(device)},
                          Deadline::after(kStorePatience, "joining the run")));
  };
  const WorkerReport report = report_of_work(join_run, stderr, line, [&](Comm& comm, StatusLine& said) {
    if (moving) {
      const RankElastic* const elastic = moving->begin(comm, said);
      // reset before the Comm is destroyed
      const std::shared_ptr<void> ended(nullptr, [&](void*) { moving->end(); });
      const auto board = [&] { return moving->open_board(); };
      return removing_memory(join.run, [&] {
        return train_part(run, options, {device, join.threads, told.is_interrupted, board, elastic}, comm,
                          said);
      });
    }
    const ElasticSeat elastic(where, comm, welcome.seat, told, said, std::move(welcome.order));
    const auto board = [&] { return std::make_unique<StoreBoard>(store, where.prefix); };
    const auto ends = [&] { return told.is_interrupted() || elastic.is_told_to_end(); };
    return train_part(run, options, {device, join.threads, ends, board, elastic.get()}, comm, said);
  });
  if (!report.why.empty()) line.print(report.why);
  (void)own->set(where.prefix + end_key(welcome.seat), text(report));
  if (moving) moving->stay_for_others(told.is_interrupted);
  return exit_code(report.end);
}

}  // namespace

int train_as_comer(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                   const WorkerSignals& signals, StatusLine& line) {
  std::signal(SIGPIPE, SIG_IGN);
  JoinOptions again = join;
  while (true) {
    try {
      return train_until_left(again, options, table, signals, line);
    } catch (const LeftBehind&) {
      line.print("the other workers continued without this one; rejoining");
      again.was_in = true;
    } catch (const StoreLost&) {
      line.print("the run's store was lost before it accepted this worker; asking again");
      again.was_in = true;
    }
  }
}

}  // namespace optimus
