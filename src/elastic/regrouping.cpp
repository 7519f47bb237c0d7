// Implements regrouping.h.
#include "elastic/regrouping.h"

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
#include "elastic/host_memory.h"
#include "elastic/pulse.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr Seconds kReportPatience{120};
constexpr const char* kClaim = "generation-";

Path claim_path(const Path& run, int generation) {
  return run / "logs" / fmt::format("{}{}", kClaim, generation);
}

// Returns 0 on success, EEXIST if the path already exists, or another errno. Without hard links the file is
// empty for a moment.
int put_if_new(const Path& draft, const Path& path) {
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

// From files or from memory, whichever is newer.
std::optional<std::pair<Path, TrainingState>> newest_checkpoint(const Path& run,
                                                                const std::optional<Path>& memory) {
  std::optional<CheckpointEntry> newest = newest_whole(run);
  if (memory)
    if (const auto kept = newest_whole(*memory); kept && (!newest || kept->step > newest->step))
      newest = kept;
  if (!newest) return std::nullopt;
  const Checkpoint checkpoint = Checkpoint::open(newest->folder);
  return std::pair(newest->folder, parse_training_state(checkpoint.small_file(kTrainingStateFile),
                                                        (newest->folder / kTrainingStateFile).string()));
}

}  // namespace

std::string text(const Comer& comer) {
  return Json{{"pid", comer.pid}, {"host", comer.host}, {"device", comer.device}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

Comer parse_comer(const std::string& text) {
  const Json json = parse_json(text, "a join request");
  const JsonView view(json, "a join request");
  return {static_cast<int>(view.at("pid").integer(1, INT_MAX)), view.at("host").text(),
          view.at("device").text()};
}

std::string JoinKeys::comer() const { return fmt::format("joining/{}/comer", number); }
std::string JoinKeys::welcome() const { return fmt::format("joining/{}/welcome", number); }
bool has_claim(const Path& run, int generation) {
  std::error_code error;
  return std::filesystem::exists(claim_path(run, generation), error);
}

std::optional<RegroupOrder> claimed_order(const Path& run, int generation) {
  if (!has_claim(run, generation)) return std::nullopt;
  try {
    return parse_regroup_order(value_or_throw(read_file(claim_path(run, generation))));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

bool is_left_out(const Path& run, int generation, int seat) {
  if (!has_claim(run, generation)) return false;
  const std::optional<RegroupOrder> order = claimed_order(run, generation);
  return !order || std::find(order->membership.seats.begin(), order->membership.seats.end(), seat) ==
                       order->membership.seats.end();
}

void clear_claims(const Path& run) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(run / "logs", error), end; !error && at != end;
       at.increment(error))
    if (starts_with(at->path().filename().string(), kClaim)) ::unlink(at->path().c_str());
}

std::string end_key(int seat) { return fmt::format("ended/{}", seat); }
std::string meet_key(int generation) { return fmt::format("meet/{}", generation); }

Regrouping::Regrouping(Board& board, Facts facts, const std::vector<WorkerEntry>& workers, const Plan& plan,
                       std::int64_t epoch)
    : board_(board),
      facts_(std::move(facts)),
      num_staying_(static_cast<int>(workers.size())),
      workers_(workers),
      plans_{{epoch, plan}},
      answers_(facts_.answers) {
  for (std::size_t seat = 0; seat < workers.size(); ++seat)
    membership_.seats.push_back(static_cast<int>(seat));
}

Regrouping::Regrouping(Board& board, Facts facts, const std::vector<WorkerEntry>& workers,
                       const RegroupOrder& order)
    : board_(board),
      facts_(std::move(facts)),
      membership_(order.membership),
      num_staying_(order.num_staying),
      workers_(workers),
      plans_{{order.epoch, order.from}, {order.epoch + 1, order.to}},
      answers_(facts_.answers) {
  know_seats(order);
}

// Nothing is known of lost workers except their ids.
void Regrouping::know_seats(const RegroupOrder& order) {
  const int most = *std::max_element(order.membership.seats.begin(), order.membership.seats.end());
  const auto count = static_cast<std::size_t>(std::max(order.num_seats, most + 1));
  if (count > workers_.size()) workers_.resize(count);
}

// Two partitions of a run that cannot reach each other may both try to continue. A file in the run's folder
// admits only one: it contains the order and appears atomically, so it outlives the process that made it.
Outcome<void> Regrouping::claim(const RegroupOrder& order) const {
  const Path path = claim_path(facts_.run, order.membership.generation);
  const Path draft = path.string() + fmt::format(".{}-{}", host_name(), ::getpid());
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  RealFileSystem files;
  if (const Outcome<void> written = write_atomically(files, draft, text(order)); !written) return written;
  const int why = put_if_new(draft, path);
  ::unlink(draft.c_str());
  if (why == 0) return {};
  return why == EEXIST ? failure("other ranks of the run have continued without these")
                       : failure("cannot create {}: {}", path.string(), std::strerror(why));
}

// Adopts a claimed order: the process that made it may have died before all ranks received it.
tl::expected<RegroupOrder, std::string> Regrouping::adopt(RegroupOrder order,
                                                          const std::vector<Standing>& standings) {
  const std::vector<int>& seats = order.membership.seats;
  for (const Standing& standing : standings)
    if (std::find(seats.begin(), seats.end(),
                  membership_.seats.at(static_cast<std::size_t>(standing.rank))) == seats.end())
      return tl::unexpected(std::string("other ranks of the run have continued without these"));
  know_seats(order);
  begin_generation(order);
  return order;
}

void Regrouping::begin_generation(const RegroupOrder& order) {
  membership_ = order.membership, num_staying_ = order.num_staying;
  plans_ = {{order.epoch, order.from}, {order.epoch + 1, order.to}};
  lost_.clear(), hung_.clear(), wait_.reset();
}

bool Regrouping::is_member(int seat) const {
  return std::find(membership_.seats.begin(), membership_.seats.end(), seat) != membership_.seats.end();
}

std::vector<WorkerEntry> Regrouping::members() const {
  std::vector<WorkerEntry> result;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(num_staying_); ++rank) {
    WorkerEntry entry = workers_[static_cast<std::size_t>(membership_.seats[rank])];
    entry.rank = static_cast<int>(rank);
    result.push_back(std::move(entry));
  }
  return result;
}

std::vector<int> Regrouping::hosts_of(const std::vector<int>& seats) const {
  std::vector<std::string> names;
  for (const int seat : seats) names.push_back(workers_.at(static_cast<std::size_t>(seat)).host);
  return numbered(names);
}

bool Regrouping::has_begun() {
  if (has_begun_) return true;
  const auto said = board_.find(kBegunKey);
  return has_begun_ = said && said->has_value();
}

std::string Regrouping::what_hangs(int seat) const {
  const auto found = hung_.find(seat);
  return found == hung_.end() ? "" : found->second;
}

// A process reports its own hang; the other ranks show whether it blocks them. If they do not all wait for
// it, it is only slow, or all are.
void Regrouping::look_for_hangs() {
  constexpr double kWaitingLong = 1;
  std::map<int, std::string> hung;
  int num_waiting = 0;
  for (const int seat : staying()) {
    const auto said = board_.find(pulse_key(seat));
    const std::optional<Pulse> pulse = said && *said ? parse_pulse(**said) : std::nullopt;
    if (!pulse) return;  // a rank has not begun
    if (!pulse->hangs.empty())
      hung.emplace(seat, pulse->hangs);
    else if (pulse->waiting > kWaitingLong)
      ++num_waiting;
    else
      return;
  }
  if (hung.empty() || num_waiting == 0) return;
  for (const auto& [seat, what] : hung) (void)board_.set(gone_key(seat), "");
  hung_ = std::move(hung);
  rouse();
}

std::vector<std::string> Regrouping::watched_keys() const {
  std::vector<std::string> keys = {JoinKeys{next_comer_}.comer(),
                                   SalvageKeys{membership_.generation}.somebody()};
  for (const int seat : staying()) keys.push_back(pulse_key(seat)), keys.push_back(end_key(seat));
  return keys;
}

void Regrouping::look() {
  if (hung_.empty()) look_for_hangs();
  answers_.think_ahead(num_staying_);
  if (answer_) improve();
  const auto said = board_.find(JoinKeys{next_comer_}.comer());
  if (!said || !*said) return;
  try {
    comers_.emplace(next_comer_, parse_comer(**said));
    (void)board_.set(meet_key(membership_.generation), "");
  } catch (const UserError&) {  // an invalid request is ignored
  }
  ++next_comer_;
}

void Regrouping::rouse() { (void)board_.set(SalvageKeys{membership_.generation}.somebody(), ""); }

std::vector<int> Regrouping::staying() const {
  return {membership_.seats.begin(), membership_.seats.begin() + num_staying_};
}

bool Regrouping::needs_leavers(const std::vector<Standing>& standings) const {
  const std::int64_t first = plans_.rbegin()->first;
  return std::none_of(standings.begin(), standings.end(),
                      [&](const Standing& standing) { return standing.epoch >= first; });
}

std::optional<WorkerReport> Regrouping::report_of(int seat) const {
  const auto said = board_.find(end_key(seat));
  return said && *said ? std::optional(parse_worker_report(**said)) : std::nullopt;
}

std::optional<WorkerReport> Regrouping::wait_for_report(int seat) const {
  const Deadline deadline = Deadline::after(kReportPatience, "a worker's report");
  while (!deadline.has_passed()) {
    if (std::optional<WorkerReport> report = report_of(seat)) return report;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return std::nullopt;
}

void Regrouping::improve() {
  if (!answers_.is_settled(num_staying_)) return;
  std::optional<Plan> better = answers_.improvement(*answer_, num_staying_);
  answer_.reset();
  if (better && better->buddy > 0) better = with_copies_apart(*better, hosts_of(staying()));
  if (better && facts_.improve) improving_ = std::async(std::launch::async, facts_.improve, *better);
}

// The plans that this generation began with, and those that it has changed to since.
std::map<std::int64_t, Plan> Regrouping::plans_of(const std::vector<Standing>& standings) const {
  std::map<std::int64_t, Plan> plans = plans_;
  for (const Standing& standing : standings) {
    if (plans.contains(standing.epoch) || standing.epoch < plans_.rbegin()->first) continue;
    try {
      plans[standing.epoch] = read_plan(plan_path(facts_.run, standing.epoch));
    } catch (
        const UserError&) {  // rank 0 was lost before it wrote the plan: the layout of that state is unknown
    }
  }
  return plans;
}

void Regrouping::welcome(const RegroupOrder& order, const std::map<std::int64_t, int>& seats) {
  for (const auto& [number, seat] : seats)
    (void)board_.set(JoinKeys{number}.welcome(), fmt::format("{} {}", seat, text(order)));
}

bool Regrouping::waits_for_lost(const std::vector<Standing>& standings) {
  constexpr double kLongest = 20;  // ranks that wait for an order have a timeout of their own
  const int num_lost = num_staying_ - static_cast<int>(standings.size());
  if (num_lost <= 0 || !comers_.empty()) return false;
  if (!wait_) {
    const RecoveryCosts& costs = facts_.costs;
    const WaitChoice choice =
        wait_or_replan(RepairForecast(outages_, seconds_of_clock()), 0,
                       {.speed_without = static_cast<double>(standings.size()) / num_staying_,
                        .replan_seconds = costs.recovery_seconds + costs.move_seconds(costs.loss_bytes),
                        .take_back_seconds = costs.switch_seconds + costs.move_seconds(costs.join_bytes),
                        .resume_seconds = costs.switch_seconds});
    wait_ = Deadline::after(Seconds(std::min(kLongest, choice.wait_seconds)), "the lost ranks");
  }
  return !wait_->has_passed();
}

// Takes as long as copying takes. A rank that was asked is waited for as long as its heartbeat continues.
void Regrouping::collect_memory(const std::vector<Standing>& standings) {
  if (!find_host_memory(facts_.run)) return;
  const SalvageKeys keys{membership_.generation};
  (void)board_.set(keys.bring(), "");
  const Deadline deadline = Deadline::after(kBringPatience, "checkpoints in host memory");
  for (const Standing& standing : standings) wait_for_memory(standing.rank, deadline);
  RealFileSystem files;
  (void)take_host_memory(files, facts_.run);
}

void Regrouping::wait_for_memory(int rank, const Deadline& deadline) const {
  constexpr Seconds kSilence{5};
  const int seat = membership_.seats.at(static_cast<std::size_t>(rank));
  const auto has = [&](const std::string& key) {
    const auto said = board_.find(key);
    return !said || said->has_value();  // an unreachable store ends the wait too
  };
  std::string last;
  Deadline silence = Deadline::after(kSilence, "a heartbeat");
  for (int look = 0; !deadline.has_passed() && !silence.has_passed(); ++look) {
    if (has(SalvageKeys{membership_.generation}.brought(rank)) || has(gone_key(seat))) return;
    const auto pulse = board_.find(pulse_key(seat));
    if (pulse && *pulse && **pulse != last)
      last = **pulse, silence = Deadline::after(kSilence, "a heartbeat");
    pause_before_look(look);
  }
}

// A host that was already known keeps its number.
void Regrouping::add_comers_to_memory(const std::vector<int>& comers) const {
  const auto memory = find_host_memory(facts_.run);
  if (!memory || comers.empty()) return;
  std::vector<int> hosts = memory->host_of;
  hosts.resize(static_cast<std::size_t>(comers.front()));
  for (const int seat : comers) {
    const auto is_there = [&](const WorkerEntry& other) {
      return other.host == workers_[static_cast<std::size_t>(seat)].host;
    };
    const auto same = std::find_if(workers_.begin(), workers_.begin() + seat, is_there) - workers_.begin();
    hosts.push_back(same < seat ? hosts[static_cast<std::size_t>(same)]
                                : *std::max_element(hosts.begin(), hosts.end()) + 1);
  }
  RealFileSystem files;
  write_hosts(files, facts_.run, hosts);
}

// A joining worker ends the outage that has lasted longest.
void Regrouping::note_outages(int num_lost, int num_come) {
  const double now = seconds_of_clock();
  for (Outage& outage : outages_)
    if (outage.ended < 0 && num_come > 0) outage.ended = now, --num_come;
  for (int i = 0; i < num_lost; ++i) outages_.push_back({now, num_come-- > 0 ? now : -1});
}

tl::expected<RegroupOrder, std::string> Regrouping::regroup(const std::vector<Standing>& standings) {
  if (std::optional<RegroupOrder> made = claimed_order(facts_.run, membership_.generation + 1)) {
    tl::expected<RegroupOrder, std::string> order = adopt(std::move(*made), standings);
    if (order && facts_.done) facts_.done(*order, members());
    return order;
  }
  std::map<std::int64_t, int> seats;
  std::vector<int> comers;
  for (const auto& [number, comer] : comers_) {
    seats[number] = static_cast<int>(workers_.size());
    comers.push_back(seats[number]);
    workers_.push_back({0, comer.pid, comer.host, comer.device, log_path(seats[number])});
  }
  comers_.clear();
  try {
    RegroupFacts facts{.model = facts_.model,
                       .membership = membership_,
                       .num_staying = num_staying_,
                       .plans = plans_of(standings),
                       .comers = comers,
                       .lost = lost_,
                       .phases = facts_.phases,
                       .find_checkpoint =
                           [&] {
                             collect_memory(standings);
                             return newest_checkpoint(facts_.run, facts_.memory);
                           },
                       .choose =
                           [&](int size, const std::optional<WhereStateIs>& state) {
                             answer_ = answers_.answer(size, state);
                             return answer_->plan;
                           }};
    tl::expected<RegroupOrder, std::string> order = plan_regroup(facts, standings);
    if (!order) return order;
    order->num_seats = static_cast<int>(workers_.size());
    if (order->to.buddy > 0) order->to = with_copies_apart(order->to, hosts_of(order->membership.seats));
    if (answer_->kind != FirstAnswer::Kind::planned) order->what += fmt::format(" ({})", text(answer_->kind));
    if (const Outcome<void> claimed = claim(*order); !claimed) return tl::unexpected(claimed.error().why);
    note_outages(num_staying_ - static_cast<int>(standings.size()), static_cast<int>(comers.size()));
    add_comers_to_memory(comers);
    begin_generation(*order);
    welcome(*order, seats);
    if (facts_.done) facts_.done(*order, members());
    return order;
  } catch (const UserError& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

}  // namespace optimus
