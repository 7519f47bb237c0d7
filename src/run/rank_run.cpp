// One rank of a run of text, from its first part to the end: steps, changes of plan, and what it does when others are lost, come or leave.
// Read next: training.h (the loop over steps), elastic/plan_switches.h, regroup.h.
#include <algorithm>
#include <chrono>
#include <thread>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "cluster/open.h"
#include "cluster/standard.h"
#include "elastic/plan_switches.h"
#include "observe/decisions.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/choose_plan.h"
#include "run/evaluate.h"
#include "run/expected.h"
#include "run/memory.h"
#include "run/memory_level.h"
#include "run/observation_record.h"
#include "run/phases.h"
#include "run/plan_files.h"
#include "run/profile.h"
#include "run/rank_show.h"
#include "run/regrouping.h"
#include "run/saver.h"
#include "run/status.h"
#include "run/survivor.h"
#include "run/train_rank.h"
#include "run/training.h"
#include "run/watching.h"
#include "run/weights.h"
#include "run/worker.h"

namespace optimus {
namespace {

constexpr Seconds kRegroupPatience{20};  // for the others to connect anew

// Mean validation loss over the first windows of the held-out part: at most a few batches.
std::optional<double> validation_loss(const PlanPart& part, const TrainSettings& settings, int rank) {
  constexpr std::int64_t kMostBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  NullSink quiet;
  const LossSum total = sum_losses(*part.engine, part.plan, settings.model, *settings.validation,
                                   kMostBatches * part.plan.batch, quiet, rank);
  return total.count > 0 ? std::optional(total.mean()) : std::nullopt;
}

class RankRun {
 public:
  RankRun(const PreparedRun& run, const TrainOptions& options, const RankPart& rank)
      : run_(run),
        settings_(run.settings),
        options_(options),
        rank_(rank),
        small_files_(small_files(run.settings)),
        requests_(run.settings.run) {}

  TrainResult train();

 private:
  // How the steps have come to an end: all are done, or how to go on.
  using End = std::variant<TrainResult, RegroupOrder>;

  EngineOptions engine_options() const;
  // As the run began, or from a checkpoint.
  void fill(Parameters& parameters, const std::optional<Path>& checkpoint) const;
  // The rank's part in a plan, from there; its groups are connected.
  void take_part(const Plan& plan, const std::optional<Path>& checkpoint);
  PartKeepers keepers(const PlanPart& part);
  Agreement ranks_of(const PlanPart& part) const;
  Course course();
  Plan best_plan(const Plan& now) const;  // for all ranks that there are, and the batch of this one
  // Rank 0 of a run that decides by itself; else nothing.
  std::unique_ptr<Deciding> decider();
  bool is_watched() const { return !options_.is_static && rank_.comm.size() > 1; }

  // The first part; how to go on when others are lost meanwhile.
  std::optional<RegroupOrder> begin(Training& training);
  End train_on(Training& training);
  // What the others decide when some are lost, come or leave; nothing: the run ends.
  std::optional<RegroupOrder> meet(Training& training, const SurvivorWords& words,
                                   const std::function<void()>& let_go);
  std::optional<RegroupOrder> meet_at(Board& board, Training& training, SurvivorWords words,
                                      const std::function<void()>& let_go);
  void write_plan_if_missing(std::int64_t epoch);
  // Another order when that fails, too.
  std::optional<RegroupOrder> go_on(const RegroupOrder& order, Training& training);
  void take_up(const RegroupOrder& order, Training& training);
  SwitchReport move_state(const RegroupOrder& order, Training& training);
  void open_records_after(const RegroupOrder& order, const Training& training);
  std::string line_of(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
                      const Training& training) const;
  void tell(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
            const Training& training, const std::string& line);
  Seconds since_failure() const {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - failed_).count());
  }
  bool is_leaving(const RegroupOrder& order) const { return number() >= order.num_staying; }
  void show_result(TrainResult& result);
  int number() const { return rank_.comm.rank(); }

  const PreparedRun& run_;
  const TrainSettings& settings_;
  const TrainOptions& options_;
  const RankPart& rank_;
  RealFileSystem files_;
  std::vector<SmallFile> small_files_;  // some are in a checkpoint that will be gone
  PlanPart part_;
  PlanPart earlier_;  // as the part was before a move that some may not have seen the end of
  ControlFolder requests_;
  Calibration calibration_;            // at rank 0
  std::optional<RunFolder> records_;   // at rank 0
  std::optional<DrainRequest> drain_;  // that is done with the next order
  int generation_ = 0;
  bool has_profiled_ = false, has_left_ = false;
  std::chrono::steady_clock::time_point failed_;
};

EngineOptions RankRun::engine_options() const {
  EngineOptions options{.device = rank_.device, .seed = options_.seed};
  options.product_record = measured_cluster_path().parent_path() / "products.json";
  options.rank = number(), options.patience = options_.patience;
  if (rank_.elastic != nullptr) options.beacon = rank_.elastic->beacon;
  options.predicted = [this](const Plan& plan, const Program& program) {
    return predicted_seconds(facts_of(rank_.device).type, plan, settings_.model, program);
  };
  return options;
}

void RankRun::fill(Parameters& parameters, const std::optional<Path>& checkpoint) const {
  if (checkpoint)
    restore(Checkpoint::open(*checkpoint), settings_.model, Restored::everything, parameters);
  else if (settings_.weights != nullptr)
    load_weights(*settings_.weights, parameters, rank_.events);
  else
    parameters.initialize(options_.seed);
}

void RankRun::take_part(const Plan& plan, const std::optional<Path>& checkpoint) {
  part_ = {.plan = plan};
  if (!has_device(plan, number())) return;
  part_.parameters = std::make_unique<Parameters>(plan, settings_.model, number(), rank_.device);
  fill(*part_.parameters, checkpoint);
  EngineOptions options = engine_options();
  const bool is_alone = num_devices(plan) == 1;
  if (!is_alone) options.comm = &rank_.comm;
  part_.engine = std::make_unique<Engine>(plan, settings_.model, *part_.parameters, options);
  if (!is_alone)
    done_or_throw(
        rank_.comm.connect(0, part_.engine->groups(), Deadline::after(options_.patience, "connecting")));
}

Agreement RankRun::ranks_of(const PlanPart& part) const {
  return {num_devices(part.plan) == 1 ? nullptr : &rank_.comm, world_of(part.plan, rank_.comm.size()),
          options_.patience};
}

PartKeepers RankRun::keepers(const PlanPart& part) {
  PartKeepers made;
  if (part.is_empty()) return made;
  for (SmallFile& file : small_files_)
    if (file.name == kPlanFile) file.content = plan_text(part.plan);
  const Agreement ranks = ranks_of(part);
  const auto saver = [&](const Path& folder, Retention retention, std::optional<HostMemory> hosts = {}) {
    return std::make_unique<Saver>(Saver::Target{files_, folder, retention, small_files_, std::move(hosts)},
                                   part.plan, settings_.model, *part.parameters, ranks, number());
  };
  made.saver = saver(settings_.run, {options_.keep_last, options_.keep_every});
  if (const std::optional<Path> level = find_memory_level(settings_.run); options_.memory_every > 0 && level)
    made.memory = saver(*level, {.keep_last = 1});
  // Which host keeps whose copy was agreed on for the ranks that the run began with.
  if (const auto hosts = find_host_memory(settings_.run);
      options_.memory_every > 0 && hosts && generation_ == 0)
    made.memory = saver(settings_.run, {}, hosts->of_ranks(storing_ranks(part.plan)));
  // Of the first plan only: its steps are the first of the run.
  if (!options_.profile.empty() && !std::exchange(has_profiled_, true))
    made.profiler = std::make_unique<Profiler>(
        ProfileOptions{options_.profile, settings_.run, run_.resumed.state.step, settings_.steps}, part.plan,
        settings_.model, *part.engine, *part.parameters, ranks, rank_.events, rank_.line);
  return made;
}

Plan RankRun::best_plan(const Plan& now) const {
  TrainOptions options = options_;
  options.devices = rank_.comm.size(), options.batch = now.batch;
  options.sequence_length = now.sequence_length;
  options.precision = text(now.precision);
  return choose_plan(options, settings_.model, facts_of(rank_.device), false).plan;
}

std::unique_ptr<Deciding> RankRun::decider() {
  if (!is_watched() || number() != 0 || settings_.model.is_custom()) return nullptr;
  const DeviceFacts device = facts_of(rank_.device);
  const int size = rank_.comm.size();
  std::vector<std::string> hosts(static_cast<std::size_t>(size));
  for (const WorkerEntry& worker : listed_workers(settings_.run))
    if (worker.rank < size) hosts[static_cast<std::size_t>(worker.rank)] = worker.host;
  Policy policy = parse_policy(options_.policy.empty() ? "rule" : options_.policy, "--policy");
  // What takes how long says little of devices that take turns on one core.
  const auto on_this = std::count(hosts.begin(), hosts.end(), hosts.front());
  const bool is_shared = !device.is_gpu && on_this * rank_.threads >
                                               static_cast<std::int64_t>(std::thread::hardware_concurrency());
  if (options_.policy.empty() && is_shared) policy.kind = PolicyKind::never;
  const bool has_copies = rank_.elastic != nullptr && can_lose(part_.plan) > 0;
  Deciding::Facts facts{
      .model = settings_.model,
      .policy = policy,
      .machines = profile_of(open_cluster(fmt::format("{}x{}", device.type, size)).profile(), hosts),
      .demand =
          [this, device](const Cluster& cluster, const Plan& now) {
            TrainOptions options = options_;
            options.batch = now.batch, options.sequence_length = now.sequence_length;
            options.precision = text(now.precision);
            return demand_of(options, settings_.model, device, cluster);
          },
      .can_run =
          [this, has_copies](const Plan& plan) {
            if (has_copies && can_lose(plan) == 0) return false;
            try {
              ensure_engine_supports(plan, settings_.model);
              return true;
            } catch (const UserError&) {
              return false;
            }
          },
      .clock =
          [] {
            return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
          },
  };
  return std::make_unique<Deciding>(std::move(facts), part_.plan, calibration_);
}

// Each rank has a part; the checkpoint has all.
void RankRun::show_result(TrainResult& result) {
  if (!part_.is_empty() && num_devices(part_.plan) == 1)
    return show_what_was_learned(settings_, options_, *part_.parameters, rank_, result);
  const Plan whole = one_device_plan(settings_);
  Parameters all(whole, settings_.model, 0, rank_.device, Keeping::weights);
  restore(Checkpoint::open(result.checkpoint), settings_.model, Restored::weights, all);
  show_what_was_learned(settings_, options_, all, rank_, result);
}

Course RankRun::course() {
  return {
      [this](const Plan& plan, std::int64_t step, std::int64_t first) {
        return read_batch(*settings_.samples, plan, step, first, number());
      },
      [this](const PlanPart& part) { return validation_loss(part, settings_, number()); },
      [this](const PlanPart& part) { return keepers(part); },
  };
}

// --- others are lost, come or leave

std::optional<RegroupOrder> RankRun::meet(Training& training, const SurvivorWords& words,
                                          const std::function<void()>& let_go) {
  constexpr int kMostHosts = 8;  // that are lost one after the other, each while the others turn to it
  failed_ = std::chrono::steady_clock::now();
  for (int i = 0; i < kMostHosts; ++i) {
    const std::unique_ptr<Board> board = rank_.open_board ? rank_.open_board() : nullptr;
    if (board == nullptr && rank_.elastic != nullptr) throw LeftBehind{};
    if (board == nullptr) return std::nullopt;
    try {
      return meet_at(*board, training, words, let_go);
    } catch (const BoardGone&) {
      if (rank_.elastic == nullptr) return std::nullopt;
    }
  }
  throw LeftBehind{};
}

std::optional<RegroupOrder> RankRun::meet_at(Board& board, Training& training, SurvivorWords words,
                                             const std::function<void()>& let_go) {
  words.earlier_epoch = earlier_.parameters != nullptr ? training.epoch() - 1 : -1;
  const Layout layout = layout_with_buddies(part_.plan, settings_.model, StateKind::optimizer);
  Survivor self{generation_, number(), layout, training, training.saver()};
  if (rank_.elastic == nullptr) return survive(self, board, words, let_go);
  self.is_left_behind = [&] { return is_left_out(settings_.run, generation_ + 1, rank_.elastic->seat); };
  std::optional<RegroupOrder> order = survive(self, board, words, let_go);
  const auto has_seat = [&](const std::vector<int>& seats) {
    return std::find(seats.begin(), seats.end(), rank_.elastic->seat) != seats.end();
  };
  if (order ? !has_seat(order->membership.seats) : self.is_left_behind()) throw LeftBehind{};
  return order;
}

// Rank 0 writes it behind a change of plan. Should it be lost before, the others would not know how their state lies.
void RankRun::write_plan_if_missing(std::int64_t epoch) {
  std::error_code error;
  if (rank_.elastic == nullptr || std::filesystem::exists(plan_path(settings_.run, epoch), error)) return;
  (void)write_atomically(files_, plan_path(settings_.run, epoch), plan_text(part_.plan));
}

RankRun::End RankRun::train_on(Training& training) {
  std::optional<PlanSwitches::Outside> outside;
  if (number() == 0)
    outside.emplace(PlanSwitches::Outside{requests_, [&](const Plan& now) { return best_plan(now); },
                                          rank_.elastic != nullptr});
  MoveOptions move{
      .patience = options_.patience, .keeps_old = rank_.elastic != nullptr, .early = options_.precopy};
  if (!options_.layout.max_memory) move.spare = spare_memory(rank_.device, rank_.comm.size());
  const std::unique_ptr<Deciding> deciding = decider();
  if (deciding != nullptr) outside->wish = [&] { return deciding->wish(); };
  PlanSwitches switches(
      {settings_.model, rank_.comm, engine_options(), move}, part_,
      with_begins(run_.script, settings_, training.done().phase_begins), outside,
      [&](const PlanSwitch& next) { refuse_too_large(next, settings_.model, number(), rank_.device); });
  const auto let_go = [&] {
    rank_.agreement.let_go();
    switches.let_go();
  };
  SurvivorWords words;
  std::exception_ptr failure;
  try {
    std::optional<Watching> watching;
    if (is_watched())
      watching.emplace(
          Watching::Facts{rank_.comm, settings_.model, options_.patience, engine_options().predicted,
                          deciding.get(), ObservationRecord(settings_.run)},
          part_);
    return training.run(records_ ? &*records_ : nullptr, &switches, watching ? &*watching : nullptr);
  } catch (const RegroupAsked& asked) {
    words.leaves = asked.drained == number() || asked.leaves;
    drain_ = switches.drain_request();
    try {
      training.finish_saves();
    } catch (const PeersLost& lost) {
      words.missing = lost.failure.missing;
    }
  } catch (const PeersLost& lost) {
    failure = std::current_exception(), words.missing = lost.failure.missing;
    words.leaves = rank_.elastic != nullptr && rank_.elastic->leaves();
    earlier_ = switches.take_earlier();
    if (switches.has_moved()) training.go_on_from(training.done(), training.epoch() + 1);
  } catch (const std::exception& error) {  // not Interrupted: that has saved
    failure = std::current_exception(), words.why_failed = error.what();
  }
  training.end_writing();
  write_plan_if_missing(training.epoch());
  if (std::optional<RegroupOrder> order = meet(training, words, let_go)) return *order;
  switches.let_go();
  if (number() == 0) requests_.close("the run has failed");
  if (failure) std::rethrow_exception(failure);
  throw UserError("nobody has said how to go on");
}

std::optional<RegroupOrder> RankRun::go_on(const RegroupOrder& order, Training& training) {
  const auto let_go = [&] { rank_.comm.drop(0); };
  SurvivorWords words;
  try {
    take_up(order, training);
    return std::nullopt;
  } catch (const PeersLost& error) {
    words.missing = error.failure.missing, words.leaves = is_leaving(order);
    std::optional<RegroupOrder> next = meet(training, words, let_go);
    if (!next) throw;
    return next;
  } catch (const std::exception& error) {
    words.why_failed = error.what();
    (void)meet(training, words, let_go);
    throw;
  }
}

// What this rank has of use lies as the order says; then it moves. Until all have all of it, the old is kept.
SwitchReport RankRun::move_state(const RegroupOrder& order, Training& training) {
  if (training.epoch() != order.epoch && earlier_.parameters != nullptr) part_ = std::move(earlier_);
  earlier_ = {};
  if (!has_device(order.from, number())) part_ = {};
  part_.plan = order.from;
  SwitchFacts facts{settings_.model, rank_.comm, engine_options(), {.patience = kRegroupPatience}};
  facts.move.keeps_old = true;
  PlanSwitch change(facts, part_, order.to,
                    {.num_ranks = static_cast<int>(order.membership.seats.size()),
                     .num_staying = order.num_staying,
                     .copies = MasterCopies::owned,
                     .is_placed = true,
                     .is_phase = true});  // those who are left may stand between two phases
  try {
    return change.run(part_);
  } catch (const PeersLost&) {
    const bool has_moved = part_.plan == order.to;
    earlier_ = std::move(change.earlier());
    training.go_on_from(order.state, has_moved ? order.epoch + 1 : order.epoch);
    throw;
  }
}

void RankRun::take_up(const RegroupOrder& order, Training& training) {
  const bool is_behind = order.source == RegroupOrder::Source::live && part_.engine != nullptr &&
                         training.done().step + 1 == order.state.step;
  if (is_behind) training.follow(order.gate);
  training.drop_part_keepers();
  const Plan before = part_.plan;
  rank_.elastic->regrouped(order);
  rank_.comm.regroup(order.membership);
  generation_ = order.membership.generation;
  SwitchReport report;
  if (order.source == RegroupOrder::Source::live) {
    report = move_state(order, training);
  } else {
    part_ = {}, earlier_ = {};
    rank_.comm.shrink(order.num_staying);
    const Group world{Role::world, {}};
    if (!is_leaving(order))
      done_or_throw(rank_.comm.connect(0, {&world, 1}, Deadline::after(kRegroupPatience, "the others")));
    if (!is_leaving(order))
      take_part(order.to, order.source == RegroupOrder::Source::checkpoint ? std::optional(order.checkpoint)
                                                                           : run_.resumed.checkpoint);
  }
  training.go_on_from(order.state, order.epoch + 1);
  has_left_ = is_leaving(order);
  if (!has_left_) open_records_after(order, training);
  if (has_left_) records_.reset();
  const std::string line = line_of(order, before, report, training);
  if (drain_) requests_.answer(drain_->name, {true, line});
  drain_.reset();
  if (number() == 0 && !has_left_)
    requests_.refuse_drains("the ranks have new numbers since it was asked: optimus status shows them");
  if (records_) tell(order, before, report, training, line);
}

// Whoever is rank 0 now keeps the records. The one before may have been lost between a step and its line; or it was only stopped, and
// must not put old records in the place of the new ones when it wakes: it looks for the next generation's claim when its files are
// complete, and that one's rank 0, which comes behind the claim, takes away files that wait to be put in place.
void RankRun::open_records_after(const RegroupOrder& order, const Training& training) {
  records_.reset();
  if (number() != 0) return;
  rank_.elastic->speak_to_people();
  const Path metrics = settings_.run / "metrics.jsonl";
  for (const Path& path : {metrics, settings_.run / "decisions.jsonl"}) remove_temporaries(files_, path);
  const auto check = [&] {
    if (has_claim(settings_.run, generation_ + 1)) throw LeftBehind{};
  };
  const std::string last = training.last_line();
  try {
    if (order.source == RegroupOrder::Source::live && !last.empty())
      (void)complete_metrics(files_, metrics, order.state.step, last, check);
    records_ = open_records(settings_.run, files_, order.state.step, check);
  } catch (const UserError&) {
    check();
    throw;
  }
  keep_plan(files_, settings_.run, part_.plan, training.epoch());
}

std::string RankRun::line_of(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
                             const Training& training) const {
  const Seconds paused = since_failure();
  const double step = training.step_seconds().value;
  const std::int64_t lost = order.num_steps_lost;
  return fmt::format("step {}: {}; {} worker{} on ({} → {}), paused {}{}, moved {}, {}", order.state.step,
                     order.what, order.num_staying, order.num_staying == 1 ? " goes" : "s go",
                     short_text(before), short_text(order.to), text(paused),
                     step > 0 ? fmt::format(" ({:.1f} steps)", paused.value / step) : "", text(report.moved),
                     lost == 0 ? "no step lost" : fmt::format("{} step{} lost", lost, lost == 1 ? "" : "s"));
}

void RankRun::tell(const RegroupOrder& order, const Plan& before, const SwitchReport& report,
                   const Training& training, const std::string& line) {
  rank_.line.print(line);
  const Outcome<void> kept = records_->decisions.append_line(decision_line({.step = order.state.step,
                                                                            .kind = order.kind,
                                                                            .evidence = order.what,
                                                                            .from = plan_hash(before),
                                                                            .to = plan_hash(part_.plan),
                                                                            .epoch = training.epoch(),
                                                                            .pause = since_failure(),
                                                                            .moved = report.moved,
                                                                            .minimum = report.minimum}));
  if (!kept) rank_.events.report(Warning{kept.error().why});
}

std::optional<RegroupOrder> RankRun::begin(Training& training) {
  try {
    const Group world{Role::world, {}};
    done_or_throw(rank_.comm.connect(0, {&world, 1}, Deadline::after(kStartPatience, "connecting")));
    take_part(settings_.plan, run_.resumed.checkpoint);
    training.go_on_from(run_.resumed.state, training.epoch());
    if (!part_.is_empty()) say_what_runs(settings_, rank_);
    if (number() == 0) records_ = open_records(settings_.run, files_, run_.resumed.state.step);
    return std::nullopt;
  } catch (const PeersLost& error) {
    if (rank_.elastic == nullptr) throw;
    part_.engine.reset(), part_.parameters.reset();  // nothing of use yet
    std::optional<RegroupOrder> order =
        meet(training, {.missing = error.failure.missing}, [&] { rank_.comm.drop(0); });
    if (!order) throw;
    return order;
  }
}

TrainResult RankRun::train() {
  std::optional<RegroupOrder> order;
  if (rank_.elastic != nullptr) order = rank_.elastic->order;
  const bool has_come = order.has_value();
  part_.plan = has_come ? order->from : settings_.plan;
  failed_ = std::chrono::steady_clock::now();
  Company company{rank_.comm, rank_.agreement, rank_.is_asked, nullptr,
                  newest_epoch(settings_.run).value_or(0)};
  if (rank_.elastic != nullptr)
    company.wants_to_meet = rank_.elastic->wants_to_meet, company.leaves = rank_.elastic->leaves;
  Training training(options_, settings_, course(), part_, has_come ? order->state : run_.resumed.state,
                    company, rank_.events, rank_.line);
  if (!has_come) order = begin(training);
  while (true) {
    if (order) {
      order = go_on(*order, training);
      if (order) continue;
      if (has_left_) return {};
    }
    End end = train_on(training);
    if (TrainResult* const result = std::get_if<TrainResult>(&end)) {
      if (number() != 0) return *result;
      requests_.close("the run has ended");
      show_result(*result);
      return *result;
    }
    order = std::get<RegroupOrder>(std::move(end));
  }
}

}  // namespace

TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part) {
  return RankRun(run, options, part).train();
}

}  // namespace optimus
