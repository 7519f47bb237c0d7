// RankRun: one rank of a run that trains a text model, from its first plan part to the end of the run.
// Internal to this folder; train_rank.h is the interface. rank_run.cpp contains the steps and plan parts,
// rank_adaptation.cpp the decisions on plans, and rank_membership.cpp the reaction to ranks that are lost,
// join or leave.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "elastic/membership_change.h"
#include "reshard/control.h"
#include "run/elastic_rank.h"
#include "run/rank_monitor.h"
#include "run/saver.h"
#include "run/survivor.h"
#include "run/train_rank.h"
#include "run/training.h"
#include "switching/plan_switch_controller.h"

namespace optimus {

// The clock used for adaptation decisions.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class RankRun {
 public:
  RankRun(const RunSpec& spec, const RankContext& rank, StepAgreement& agreement)
      : spec_(spec),
        settings_(spec.settings),
        options_(spec.options),
        rank_(rank),
        agreement_(agreement),
        small_files_(small_files(spec.settings)),
        requests_(spec.settings.run) {}

  TrainResult train();

 private:
  // How a sequence of steps ends: with a result (finished or stopped), or with an order that specifies how to
  // continue.
  using End = std::variant<TrainResult, MembershipChange>;

  EngineOptions engine_options() const;
  // Initializes the parameters from the checkpoint, from given weights, or randomly.
  void initialize_parameters(Parameters& parameters, const std::optional<Path>& checkpoint) const;
  // Builds this rank's part of a plan from a checkpoint, sets the training to `state`, and connects the
  // part's groups.
  void build_part(const Plan& plan, const std::optional<Path>& checkpoint, const TrainingState& state,
                  std::int64_t epoch, Training& training);
  PartServices make_services(const PlanPart& part);
  Agreement ranks_of(const PlanPart& part) const;
  TrainingHooks hooks();
  Feasible<Plan> best_plan(const Plan& now) const;  // for all current ranks, with the batch of `now`
  std::vector<std::string> hosts_of_ranks() const;
  DeviceFacts device_facts() const;  // including the memory that a future plan could use
  Bytes memory_of_plan() const;
  // Whether devices share CPU cores. If they do, step times reveal little about the individual devices.
  bool shares_cores(const std::vector<std::string>& hosts) const;
  void add_to_history() const;  // adds this run to the history of runs, if one is kept
  Policy chosen_policy(const std::vector<std::string>& hosts) const;
  // Returns the adaptation controller on rank 0 of a run that adapts automatically; null otherwise.
  std::unique_ptr<AdaptationController> make_controller();
  // Returns the mean time between failures of a device, in seconds, estimated from the expected rate and the
  // failures observed so far.
  double observed_device_mtbf(int num_devices) const;
  bool is_watched() const { return !options_.is_static && rank_.comm.size() > 1; }

  // Builds this rank's part of the first plan and connects it. If other ranks were lost in the meantime,
  // returns the membership change that follows.
  std::optional<MembershipChange> begin(Training& training);
  End train_until_membership_change(Training& training);
  std::optional<PlanSwitchController::RequestSources> request_sources(ProposalSource* proposals);
  MoveOptions move_options() const;
  // Finishes saves in progress before a membership change. Adds ranks that are lost meanwhile to `report`.
  void finish_saves(Training& training, SurvivorReport& report);
  // Publishes this rank's survivor state after ranks were lost, joined or left, and waits for the order that
  // specifies how to continue. Returns nullopt if the run ends.
  std::optional<MembershipChange> join_membership_change(Training& training, const SurvivorReport& report,
                                                         const std::function<void()>& release);
  SurvivorOutcome join_membership_change_at(Board& board, Training& training, SurvivorReport report,
                                            const std::function<void()>& release);
  void write_plan_if_missing(std::int64_t epoch);
  // Applies an order. Returns another order if more ranks are lost meanwhile.
  std::optional<MembershipChange> carry_out(const MembershipChange& order, Training& training);
  void apply_order(const MembershipChange& order, Training& training);
  void record_membership_change(const MembershipChange& order);
  SwitchReport move_state(const MembershipChange& order, Training& training);
  void answer_drains(const MembershipChange& order, const std::string& line);
  void open_records_after(const MembershipChange& order, const Training& training);
  Decision decision_of(const MembershipChange& order, const Plan& before, const SwitchReport& report,
                       const Training& training) const;
  Seconds since_failure() const {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - failure_time_).count());
  }
  bool is_leaving(const MembershipChange& order) const { return rank_index() >= order.num_staying; }
  void show_result(TrainResult& result);
  int rank_index() const { return rank_.comm.rank(); }
  int worker_id_of(int rank) const {
    return worker_ids_.empty() ? rank : worker_ids_.at(static_cast<std::size_t>(rank));
  }

  const RunSpec& spec_;
  const TrainSettings& settings_;
  const TrainOptions& options_;
  const RankContext& rank_;
  StepAgreement& agreement_;
  RealFileSystem files_;
  // Kept in memory, because some of them are read from a checkpoint that will be removed.
  std::vector<SmallFile> small_files_;
  PlanPart part_;
  PlanPart earlier_;  // the old part, after a move that some ranks may not have completed
  ControlFolder requests_;
  Calibration calibration_;           // on rank 0
  MembershipHistory membership_;      // the changes that this rank has observed
  std::optional<RunFolder> records_;  // on rank 0
  // On rank 0: a worker that leaves with the next order because a user requested it.
  struct PendingDrain {
    std::string request;
    int worker_id = 0;
  };
  std::optional<PendingDrain> pending_drain_;
  // Whether an earlier rank 0, which may have accepted a user's request, was lost.
  bool is_request_owner_lost_ = false;
  int generation_ = 0;
  std::int64_t num_steps_lost_ = 0;  // not yet reported
  std::vector<int> worker_ids_;  // worker ids by rank; empty if they are unchanged since the start of the run
  bool has_profiled_ = false, has_left_ = false;
  std::chrono::steady_clock::time_point failure_time_;
};

}  // namespace optimus
