// Implements membership_coordinator.h.
#include "elastic/membership_coordinator.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "elastic/heartbeat.h"
#include "elastic/host_memory.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr Seconds kReportTimeout{120};
constexpr const char* kClaimPrefix = "generation-";

Path claim_path(const Path& run, int generation) {
  return run / "logs" / fmt::format("{}{}", kClaimPrefix, generation);
}

// Returns 0 on success, EEXIST if the path already exists, or another errno. If the file system has no hard
// links, the file is empty for a short time.
int create_exclusively(const Path& draft, const Path& path) {
  if (::link(draft.c_str(), path.c_str()) == 0) return 0;
  if (errno == EEXIST) return EEXIST;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  ::close(file);
  return ::rename(draft.c_str(), path.c_str()) == 0 ? 0 : errno;
}

double seconds_of_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The newest complete checkpoint, on disk or in host memory.
std::optional<std::pair<Path, TrainingState>> newest_checkpoint(const Path& run,
                                                                const std::optional<Path>& memory) {
  std::optional<CheckpointEntry> newest = newest_complete(run);
  if (memory)
    if (const auto newest_in_memory = newest_complete(*memory);
        newest_in_memory && (!newest || newest_in_memory->step > newest->step))
      newest = newest_in_memory;
  if (!newest) return std::nullopt;
  const Checkpoint checkpoint = Checkpoint::open(newest->folder);
  return std::pair(newest->folder, parse_training_state(checkpoint.small_file(kTrainingStateFile),
                                                        (newest->folder / kTrainingStateFile).string()));
}

}  // namespace

std::string text(const WorkerJoinRequest& request) {
  return Json{{"pid", request.pid}, {"host", request.host}, {"device", request.device}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

WorkerJoinRequest parse_worker_join_request(const std::string& text) {
  const Json json = parse_json(text, "a join request");
  const JsonView view(json, "a join request");
  return {static_cast<int>(view.at("pid").integer(1, INT_MAX)), view.at("host").text(),
          view.at("device").text()};
}

std::string JoinKeys::request() const { return fmt::format("joining/{}/request", number); }
std::string JoinKeys::join_reply() const { return fmt::format("joining/{}/welcome", number); }
bool has_claim(const Path& run, int generation) {
  std::error_code error;
  return std::filesystem::exists(claim_path(run, generation), error);
}

std::optional<MembershipChange> claimed_change(const Path& run, int generation) {
  if (!has_claim(run, generation)) return std::nullopt;
  try {
    return parse_membership_change(value_or_throw(read_file(claim_path(run, generation))));
  } catch (const ReportedError&) {
    return std::nullopt;
  }
}

bool is_excluded(const Path& run, int generation, int worker_id) {
  if (!has_claim(run, generation)) return false;
  const std::optional<MembershipChange> order = claimed_change(run, generation);
  return !order || std::find(order->membership.worker_ids.begin(), order->membership.worker_ids.end(),
                             worker_id) == order->membership.worker_ids.end();
}

void clear_claims(const Path& run) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(run / "logs", error), end; !error && at != end;
       at.increment(error))
    if (starts_with(at->path().filename().string(), kClaimPrefix)) ::unlink(at->path().c_str());
}

std::string worker_report_key(int worker_id) { return fmt::format("ended/{}", worker_id); }
std::string membership_change_key(int generation) { return fmt::format("meet/{}", generation); }

MembershipCoordinator::MembershipCoordinator(Board& board, Inputs inputs,
                                             const std::vector<WorkerEntry>& workers, const Plan& plan,
                                             std::int64_t epoch)
    : board_(board),
      inputs_(std::move(inputs)),
      num_staying_(static_cast<int>(workers.size())),
      workers_(workers),
      plans_{{epoch, plan}},
      interim_planner_(inputs_.interim_planner_inputs) {
  for (std::size_t worker_id = 0; worker_id < workers.size(); ++worker_id)
    membership_.worker_ids.push_back(static_cast<int>(worker_id));
}

MembershipCoordinator::MembershipCoordinator(Board& board, Inputs inputs,
                                             const std::vector<WorkerEntry>& workers,
                                             const MembershipChange& order)
    : board_(board),
      inputs_(std::move(inputs)),
      membership_(order.membership),
      num_staying_(order.num_staying),
      workers_(workers),
      plans_{{order.epoch, order.from}, {order.epoch + 1, order.to}},
      interim_planner_(inputs_.interim_planner_inputs) {
  reserve_worker_ids(order);
}

// Adds entries for lost workers of which only the ids are known, so that worker ids remain valid indices.
void MembershipCoordinator::reserve_worker_ids(const MembershipChange& order) {
  const int max_worker_id =
      *std::max_element(order.membership.worker_ids.begin(), order.membership.worker_ids.end());
  const auto count = static_cast<std::size_t>(std::max(order.num_worker_ids, max_worker_id + 1));
  if (count > workers_.size()) workers_.resize(count);
}

// If a network failure splits a run into two partitions, both may try to continue. A claim file in the run's
// folder allows only one of them. It appears atomically and contains the order, so the order is not lost if
// its process fails.
Outcome<void> MembershipCoordinator::claim_generation(const MembershipChange& order) const {
  const Path path = claim_path(inputs_.run, order.membership.generation);
  const Path draft = path.string() + fmt::format(".{}-{}", host_name(), ::getpid());
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  RealFileSystem files;
  if (const Outcome<void> written = write_atomically(files, draft, text(order)); !written) return written;
  const int error_number = create_exclusively(draft, path);
  ::unlink(draft.c_str());
  if (error_number == 0) return {};
  return error_number == EEXIST ? failure("the other ranks of the run have continued without this partition")
                                : failure("cannot create {}: {}", path.string(), std::strerror(error_number));
}

// Adopts an order that was claimed by a process which may have failed before all ranks received the order.
tl::expected<MembershipChange, std::string> MembershipCoordinator::adopt_claimed_change(
    MembershipChange order, const std::vector<SurvivorState>& survivor_states) {
  const std::vector<int>& worker_ids = order.membership.worker_ids;
  for (const SurvivorState& survivor_state : survivor_states)
    if (std::find(worker_ids.begin(), worker_ids.end(),
                  membership_.worker_ids.at(static_cast<std::size_t>(survivor_state.rank))) ==
        worker_ids.end())
      return tl::unexpected(std::string("the other ranks of the run have continued without this partition"));
  reserve_worker_ids(order);
  begin_generation(order);
  return order;
}

void MembershipCoordinator::begin_generation(const MembershipChange& order) {
  membership_ = order.membership, num_staying_ = order.num_staying;
  plans_ = {{order.epoch, order.from}, {order.epoch + 1, order.to}};
  lost_.clear(), hanging_workers_.clear(), wait_deadline_.reset();
}

bool MembershipCoordinator::is_member(int worker_id) const {
  return std::find(membership_.worker_ids.begin(), membership_.worker_ids.end(), worker_id) !=
         membership_.worker_ids.end();
}

std::vector<WorkerEntry> MembershipCoordinator::members() const {
  std::vector<WorkerEntry> result;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(num_staying_); ++rank) {
    WorkerEntry entry = workers_[static_cast<std::size_t>(membership_.worker_ids[rank])];
    entry.rank = static_cast<int>(rank);
    result.push_back(std::move(entry));
  }
  return result;
}

std::vector<int> MembershipCoordinator::hosts_of(const std::vector<int>& worker_ids) const {
  std::vector<std::string> names;
  for (const int worker_id : worker_ids)
    names.push_back(workers_.at(static_cast<std::size_t>(worker_id)).host);
  return indices_of_distinct(names);
}

bool MembershipCoordinator::has_begun() {
  if (has_begun_) return true;
  const auto value = board_.find(kStartedKey);
  return has_begun_ = value && value->has_value();
}

std::string MembershipCoordinator::hang_of(int worker_id) const {
  const auto it = hanging_workers_.find(worker_id);
  return it == hanging_workers_.end() ? "" : it->second;
}

// If a process reports that it hangs, the heartbeats of the other ranks show whether it blocks them. If not
// all of them are waiting, the process is only slow, or all ranks are slow.
void MembershipCoordinator::detect_hangs() {
  constexpr double kMinWait = 1;
  std::map<int, std::string> hanging_workers;
  int num_waiting = 0;
  for (const int worker_id : remaining_workers()) {
    const auto value = board_.find(heartbeat_key(worker_id));
    const std::optional<Heartbeat> heartbeat = value && *value ? parse_heartbeat(**value) : std::nullopt;
    if (!heartbeat) return;  // a rank has not begun
    if (!heartbeat->hang_description.empty())
      hanging_workers.emplace(worker_id, heartbeat->hang_description);
    else if (heartbeat->waiting > kMinWait)
      ++num_waiting;
    else
      return;
  }
  if (hanging_workers.empty() || num_waiting == 0) return;
  for (const auto& [worker_id, description] : hanging_workers) (void)board_.set(lost_key(worker_id), "");
  hanging_workers_ = std::move(hanging_workers);
  request_survivor_states();
}

std::vector<std::string> MembershipCoordinator::watched_keys() const {
  std::vector<std::string> keys = {JoinKeys{next_join_number_}.request(),
                                   RecoveryKeys{membership_.generation}.first_report()};
  for (const int worker_id : remaining_workers())
    keys.push_back(heartbeat_key(worker_id)), keys.push_back(worker_report_key(worker_id));
  return keys;
}

void MembershipCoordinator::poll() {
  if (hanging_workers_.empty()) detect_hangs();
  interim_planner_.plan_ahead(num_staying_);
  if (interim_plan_) propose_improvement();
  const auto value = board_.find(JoinKeys{next_join_number_}.request());
  if (!value || !*value) return;
  try {
    join_requests_.emplace(next_join_number_, parse_worker_join_request(**value));
    (void)board_.set(membership_change_key(membership_.generation), "");
  } catch (const UserError&) {  // an invalid request is ignored
  }
  ++next_join_number_;
}

void MembershipCoordinator::request_survivor_states() {
  (void)board_.set(RecoveryKeys{membership_.generation}.first_report(), "");
}

std::vector<int> MembershipCoordinator::remaining_workers() const {
  return {membership_.worker_ids.begin(), membership_.worker_ids.begin() + num_staying_};
}

bool MembershipCoordinator::needs_leaving_ranks(const std::vector<SurvivorState>& survivor_states) const {
  const std::int64_t new_epoch = plans_.rbegin()->first;
  return std::none_of(survivor_states.begin(), survivor_states.end(),
                      [&](const SurvivorState& survivor_state) { return survivor_state.epoch >= new_epoch; });
}

std::optional<WorkerReport> MembershipCoordinator::report_of(int worker_id) const {
  const auto value = board_.find(worker_report_key(worker_id));
  return value && *value ? std::optional(parse_worker_report(**value)) : std::nullopt;
}

std::optional<WorkerReport> MembershipCoordinator::wait_for_report(int worker_id) const {
  const Deadline deadline = Deadline::after(kReportTimeout, "a worker's report");
  while (!deadline.has_passed()) {
    if (std::optional<WorkerReport> report = report_of(worker_id)) return report;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return std::nullopt;
}

Feasible<Plan> MembershipCoordinator::choose_plan(int size, const std::optional<StateLocation>& state) {
  Feasible<InterimPlan> chosen = interim_planner_.plan_for(size, state);
  if (!chosen) return tl::unexpected(chosen.error());
  return interim_plan_.emplace(*std::move(chosen)).plan;
}

void MembershipCoordinator::propose_improvement() {
  if (!interim_planner_.is_settled(num_staying_)) return;
  std::optional<Plan> better_plan = interim_planner_.improvement(*interim_plan_, num_staying_);
  interim_plan_.reset();
  if (better_plan && better_plan->copy_distance > 0)
    better_plan = with_copies_in_other_domains(*better_plan, hosts_of(remaining_workers()));
  if (better_plan && inputs_.propose_improvement)
    improvement_ = std::async(std::launch::async, inputs_.propose_improvement, *better_plan);
}

// The plans from the start of this generation, and the plans to which the run has switched since then.
std::map<std::int64_t, Plan> MembershipCoordinator::plans_of(
    const std::vector<SurvivorState>& survivor_states) const {
  std::map<std::int64_t, Plan> plans = plans_;
  for (const SurvivorState& survivor_state : survivor_states) {
    if (plans.contains(survivor_state.epoch) || survivor_state.epoch < plans_.rbegin()->first) continue;
    try {
      plans[survivor_state.epoch] = read_plan(plan_path(inputs_.run, survivor_state.epoch));
    } catch (const ReportedError&) {
      // Rank 0 was lost before it wrote the plan, so the layout of that state is unknown.
    }
  }
  return plans;
}

void MembershipCoordinator::send_join_replies(const MembershipChange& order,
                                              const std::map<std::int64_t, int>& worker_ids) {
  for (const auto& [number, worker_id] : worker_ids)
    (void)board_.set(JoinKeys{number}.join_reply(), fmt::format("{} {}", worker_id, text(order)));
}

bool MembershipCoordinator::should_wait_for_lost(const std::vector<SurvivorState>& survivor_states) {
  constexpr double kMaxWait = 20;  // seconds; ranks that wait for an order have their own timeout
  const int num_lost = num_staying_ - static_cast<int>(survivor_states.size());
  if (num_lost <= 0 || !join_requests_.empty()) return false;
  if (!wait_deadline_) {
    const RecoveryCosts& costs = inputs_.costs;
    const WaitChoice choice =
        wait_or_replan(RepairForecast(outages_, seconds_of_clock()), 0,
                       {.speed_without = static_cast<double>(survivor_states.size()) / num_staying_,
                        .replan_seconds = costs.recovery_seconds + costs.move_seconds(costs.loss_bytes),
                        .readmit_seconds = costs.switch_seconds + costs.move_seconds(costs.join_bytes),
                        .resume_seconds = costs.switch_seconds});
    wait_deadline_ = Deadline::after(Seconds(std::min(kMaxWait, choice.wait_seconds)), "the lost ranks");
  }
  return !wait_deadline_->has_passed();
}

// Waits until all copies are complete. Waits for each rank that was asked to copy as long as its heartbeat
// continues.
void MembershipCoordinator::collect_memory(const std::vector<SurvivorState>& survivor_states) {
  if (!find_host_memory(inputs_.run)) return;
  const RecoveryKeys keys{membership_.generation};
  (void)board_.set(keys.export_request(), "");
  const Deadline deadline = Deadline::after(kExportTimeout, "checkpoints in host memory");
  for (const SurvivorState& survivor_state : survivor_states) wait_for_memory(survivor_state.rank, deadline);
  RealFileSystem files;
  (void)commit_host_memory(files, inputs_.run);
}

void MembershipCoordinator::wait_for_memory(int rank, const Deadline& deadline) const {
  constexpr Seconds kSilenceTimeout{5};
  const int worker_id = membership_.worker_ids.at(static_cast<std::size_t>(rank));
  const auto is_set = [&](const std::string& key) {
    const auto value = board_.find(key);
    return !value || value->has_value();  // an unreachable store ends the wait too
  };
  std::string last_heartbeat;
  Deadline silence = Deadline::after(kSilenceTimeout, "a heartbeat");
  for (int poll = 0; !deadline.has_passed() && !silence.has_passed(); ++poll) {
    if (is_set(RecoveryKeys{membership_.generation}.exported(rank)) || is_set(lost_key(worker_id))) return;
    const auto heartbeat = board_.find(heartbeat_key(worker_id));
    if (heartbeat && *heartbeat && **heartbeat != last_heartbeat)
      last_heartbeat = **heartbeat, silence = Deadline::after(kSilenceTimeout, "a heartbeat");
    pause_before_query(poll);
  }
}

// Hosts that are already known keep their index.
void MembershipCoordinator::add_joining_workers_to_memory(const std::vector<int>& joining_workers) const {
  const auto memory = find_host_memory(inputs_.run);
  if (!memory || joining_workers.empty()) return;
  std::vector<int> hosts = memory->host_of;
  hosts.resize(static_cast<std::size_t>(joining_workers.front()));
  for (const int worker_id : joining_workers) {
    const auto is_present = [&](const WorkerEntry& other) {
      return other.host == workers_[static_cast<std::size_t>(worker_id)].host;
    };
    const auto same_host_worker =
        std::find_if(workers_.begin(), workers_.begin() + worker_id, is_present) - workers_.begin();
    hosts.push_back(same_host_worker < worker_id ? hosts[static_cast<std::size_t>(same_host_worker)]
                                                 : *std::max_element(hosts.begin(), hosts.end()) + 1);
  }
  RealFileSystem files;
  write_hosts(files, inputs_.run, hosts);
}

// A joining worker ends the outage that has lasted longest.
void MembershipCoordinator::record_outages(int num_lost, int num_joined) {
  const double now = seconds_of_clock();
  for (Outage& outage : outages_)
    if (outage.end_time < 0 && num_joined > 0) outage.end_time = now, --num_joined;
  for (int i = 0; i < num_lost; ++i) outages_.push_back({now, num_joined-- > 0 ? now : -1});
}

tl::expected<MembershipChange, std::string> MembershipCoordinator::change_membership(
    const std::vector<SurvivorState>& survivor_states) {
  if (std::optional<MembershipChange> claimed_order =
          claimed_change(inputs_.run, membership_.generation + 1)) {
    tl::expected<MembershipChange, std::string> order =
        adopt_claimed_change(std::move(*claimed_order), survivor_states);
    if (order && inputs_.on_change_done) inputs_.on_change_done(*order, members());
    return order;
  }
  std::map<std::int64_t, int> worker_ids;
  std::vector<int> joining_workers;
  for (const auto& [number, request] : join_requests_) {
    worker_ids[number] = static_cast<int>(workers_.size());
    joining_workers.push_back(worker_ids[number]);
    workers_.push_back({0, request.pid, request.host, request.device, log_path(worker_ids[number])});
  }
  join_requests_.clear();
  try {
    MembershipChangeInputs inputs{
        .model = inputs_.model,
        .membership = membership_,
        .num_staying = num_staying_,
        .plans = plans_of(survivor_states),
        .joining_workers = joining_workers,
        .lost = lost_,
        .phases = inputs_.phases,
        .find_checkpoint =
            [&] {
              collect_memory(survivor_states);
              return newest_checkpoint(inputs_.run, inputs_.memory);
            },
        .choose = [&](int size,
                      const std::optional<StateLocation>& state) { return choose_plan(size, state); }};
    tl::expected<MembershipChange, std::string> order = plan_membership_change(inputs, survivor_states);
    if (!order) return order;
    order->num_worker_ids = static_cast<int>(workers_.size());
    if (order->to.copy_distance > 0)
      order->to = with_copies_in_other_domains(order->to, hosts_of(order->membership.worker_ids));
    if (interim_plan_->kind != InterimPlan::Kind::planned)
      order->description += fmt::format(" ({})", text(interim_plan_->kind));
    if (const Outcome<void> claimed = claim_generation(*order); !claimed)
      return tl::unexpected(claimed.error().why);
    record_outages(num_staying_ - static_cast<int>(survivor_states.size()),
                   static_cast<int>(joining_workers.size()));
    add_joining_workers_to_memory(joining_workers);
    begin_generation(*order);
    send_join_replies(*order, worker_ids);
    if (inputs_.on_change_done) inputs_.on_change_done(*order, members());
    return order;
  } catch (const ReportedError& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

}  // namespace optimus
