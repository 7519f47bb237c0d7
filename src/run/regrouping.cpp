// See regrouping.h.
#include "run/regrouping.h"

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
#include "plan/plan_json.h"
#include "run/plan_files.h"

namespace optimus {
namespace {

constexpr Seconds kReportPatience{120};
constexpr const char* kClaim = "generation-";

Path claim_path(const Path& run, int generation) {
  return run / "logs" / fmt::format("{}{}", kClaim, generation);
}

// Of files or of memory, whichever is newer.
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
  const Json json = parse_json(text, "who wants to join");
  const JsonView view(json, "who wants to join");
  return {static_cast<int>(view.at("pid").integer(1, INT_MAX)), view.at("host").text(),
          view.at("device").text()};
}

std::string JoinKeys::comer() const { return fmt::format("joining/{}/comer", number); }
std::string JoinKeys::welcome() const { return fmt::format("joining/{}/welcome", number); }
bool has_claim(const Path& run, int generation) {
  std::error_code error;
  return std::filesystem::exists(claim_path(run, generation), error);
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
      plans_{{epoch, plan}} {
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
      plans_{{order.epoch, order.from}, {order.epoch + 1, order.to}} {
  const int most = *std::max_element(membership_.seats.begin(), membership_.seats.end());
  if (most >= static_cast<int>(workers_.size())) workers_.resize(static_cast<std::size_t>(most) + 1);
}

// Two parts of a run that do not see each other may both want to go on. The run's folder lets one.
Outcome<void> Regrouping::claim(int generation) const {
  const Path path = claim_path(facts_.run, generation);
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0)
    return errno == EEXIST ? failure("others of the run have gone on without these")
                           : failure("{} cannot be made: {}", path.string(), std::strerror(errno));
  ::close(file);
  return {};
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

void Regrouping::look() {
  for (const int size : {num_staying_ - 1, num_staying_ + 1})  // the next is likely one less, or one more
    if (size > 0 && !chosen_.contains(size))
      chosen_[size] = std::async(std::launch::async, facts_.choose, size).share();
  const auto said = board_.find(JoinKeys{next_comer_}.comer());
  if (!said || !*said) return;
  try {
    comers_.emplace(next_comer_, parse_comer(**said));
    (void)board_.set(meet_key(membership_.generation), "");
  } catch (const UserError&) {  // it said nothing that makes sense: then it does not come
  }
  ++next_comer_;
}

void Regrouping::rouse() { (void)board_.set(SalvageKeys{membership_.generation}.somebody(), ""); }

std::vector<int> Regrouping::staying() const {
  return {membership_.seats.begin(), membership_.seats.begin() + num_staying_};
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

Plan Regrouping::plan_for(int num_devices) {
  const auto found = chosen_.find(num_devices);
  return found != chosen_.end() ? found->second.get() : facts_.choose(num_devices);
}

// Those that this generation began with, and what it has changed to since.
std::map<std::int64_t, Plan> Regrouping::plans_of(const std::vector<Standing>& standings) const {
  std::map<std::int64_t, Plan> plans = plans_;
  for (const Standing& standing : standings) {
    if (plans.contains(standing.epoch) || standing.epoch < plans_.rbegin()->first) continue;
    try {
      plans[standing.epoch] = read_plan(plan_path(facts_.run, standing.epoch));
    } catch (
        const UserError&) {  // rank 0 was lost before it had written it: then nobody knows how their state lies
    }
  }
  return plans;
}

void Regrouping::welcome(const RegroupOrder& order, const std::map<std::int64_t, int>& seats) {
  for (const auto& [number, seat] : seats)
    (void)board_.set(JoinKeys{number}.welcome(), fmt::format("{} {}", seat, text(order)));
}

tl::expected<RegroupOrder, std::string> Regrouping::regroup(const std::vector<Standing>& standings) {
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
                       .find_checkpoint = [&] { return newest_checkpoint(facts_.run, facts_.memory); },
                       .choose = [&](int size) { return plan_for(size); }};
    tl::expected<RegroupOrder, std::string> order = plan_regroup(facts, standings);
    if (!order) return order;
    if (const Outcome<void> claimed = claim(order->membership.generation); !claimed)
      return tl::unexpected(claimed.error().why);
    membership_ = order->membership, num_staying_ = order->num_staying;
    plans_ = {{order->epoch, order->from}, {order->epoch + 1, order->to}};
    lost_.clear();
    welcome(*order, seats);
    if (facts_.done) facts_.done(*order, members());
    return order;
  } catch (const UserError& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

}  // namespace optimus
