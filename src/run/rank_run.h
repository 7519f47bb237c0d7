// RankRun: one rank of a run of text, from its first part to the end. Inside of this folder (train_rank.h is what others see). Its steps
// and parts are in rank_run.cpp, what it does when others are lost, come or leave in rank_regroup.cpp.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "elastic/regroup.h"
#include "reshard/control.h"
#include "run/saver.h"
#include "run/survivor.h"
#include "run/train_rank.h"
#include "run/training.h"
#include "run/watching.h"
#include "switching/plan_switches.h"

namespace optimus {

// The clock that deciding has.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
  // The rank's part in a plan, from there, where the training then stands; its groups are connected.
  void take_part(const Plan& plan, const std::optional<Path>& checkpoint, const TrainingState& state,
                 std::int64_t epoch, Training& training);
  PartKeepers keepers(const PlanPart& part);
  Agreement ranks_of(const PlanPart& part) const;
  Course course();
  Plan best_plan(const Plan& now) const;  // for all ranks that there are, and the batch of this one
  std::vector<std::string> hosts_of_ranks() const;
  DeviceFacts device_facts() const;  // as a plan to come would have it
  Bytes held_by_plan() const;
  // What takes how long says little of devices that take turns on one core.
  bool shares_cores(const std::vector<std::string>& hosts) const;
  void remember() const;  // in the history of runs, where there is one
  // Rank 0 of a run that decides by itself; else nothing.
  std::unique_ptr<AdaptationController> make_controller();
  // Seconds of a device between two losses, by what was expected and what was seen.
  double life_so_far(int num_devices) const;
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
  void note_membership_change(const RegroupOrder& order);
  SwitchReport move_state(const RegroupOrder& order, Training& training);
  void answer_drains(const RegroupOrder& order, const std::string& line);
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
  int seat_of(int rank) const { return seats_.empty() ? rank : seats_.at(static_cast<std::size_t>(rank)); }

  const PreparedRun& run_;
  const TrainSettings& settings_;
  const TrainOptions& options_;
  const RankPart& rank_;
  RealFileSystem files_;
  std::vector<SmallFile> small_files_;  // some are in a checkpoint that will be gone
  PlanPart part_;
  PlanPart earlier_;  // as the part was before a move that some may not have seen the end of
  ControlFolder requests_;
  Calibration calibration_;           // at rank 0
  MembershipHistory membership_;      // as far as this rank has seen them
  std::optional<RunFolder> records_;  // at rank 0
  // At rank 0: who leaves with the next order because somebody asked for it.
  struct Draining {
    std::string request;
    int seat = 0;
  };
  std::optional<Draining> draining_;
  bool is_taker_gone_ = false;  // a rank 0 before this order, which may have taken a request
  int generation_ = 0;
  std::int64_t num_steps_lost_ = 0;  // that nobody was told of yet
  std::vector<int> seats_;           // of its ranks; none listed: as the run began
  bool has_profiled_ = false, has_left_ = false;
  std::chrono::steady_clock::time_point failed_;
};

}  // namespace optimus
