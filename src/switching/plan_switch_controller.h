// Controls the plan changes of one run: scripted changes (--switch-at) and changes that are requested while
// the run trains (control.h). Every rank has one PlanSwitchController, and all of them pass through the same
// states after the same steps:
//
//   requested at rank 0 ──▶ all ranks receive the plan ──▶ each prepares on a thread, steps continue
//                                                            ├──▶ all are prepared: the switch
//                                                            └──▶ one has refused: no change
//
// A proposal based on a provisional finding is prepared in the same way. Rank 0 reports itself as prepared
// only when the finding is confirmed, and refuses the plan if the proposal is cancelled. Once all ranks are
// prepared, they send state early during one more step if this shortens the pause (switching/precopy.h). Rank
// 0 accepts requests, one at a time, and answers them. Besides the agreement after each step, a plan needs
// one broadcast. A scripted switch happens exactly after its step. Read next: switching/plan_switch.h.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "adapt/plan_proposal.h"
#include "reshard/control.h"
#include "reshard/switch_script.h"
#include "switching/plan_switch.h"
#include "switching/step_agreement.h"

namespace optimus {

// How a request for another plan ended.
struct SwitchOutcome {
  enum class Kind {
    made,
    refused,    // a rank refused the plan
    cancelled,  // on rank 0: the finding of a provisional proposal was not confirmed; on other ranks: refused
    not_tried,  // on rank 0: the request is invalid, or the run already uses that plan
  };
  Kind kind = Kind::made;
  std::string why_not{};  // the rank that refused and its reason; empty if the switch was made
  std::string why{};      // reason for the switch; set only on rank 0
  bool is_phase = false;  // the switch started another training phase
  std::optional<PlanProposal> proposal{};  // the proposal that led to the request; set only on rank 0
  Plan from, to;                           // as requested, before their devices were mapped to ranks
  Seconds prepared{};                      // time that this rank needed to prepare
  SwitchReport report{};

  bool is_made() const { return kind == Kind::made; }
};

// Implemented by the training, which acts on the outcome of every request, whether it was scripted, made by a
// user, or proposed.
class SwitchListener {
 public:
  virtual ~SwitchListener() = default;
  // Must drop all references to the part's engine and parameters.
  virtual void before_switch() = 0;
  // Returns the line that is shown to users.
  virtual std::string switch_ended(const SwitchOutcome& outcome) = 0;
};

class PlanSwitchController {
 public:
  using Refusal = std::function<std::optional<std::string>(const PlanSwitch&)>;
  // The sources of requests. Only rank 0 has them.
  struct RequestSources {
    ControlFolder& requests;
    // Returns the best plan for the same batch and sequence length. Called on a separate thread.
    std::function<Feasible<Plan>(const Plan& now)> choose;
    bool can_drain = false;               // whether ranks may leave the run
    ProposalSource* proposals = nullptr;  // null if the run does not adapt
  };
  // `refusal` is called on a separate thread. It returns the reason if this rank cannot perform a switch, and
  // nullopt otherwise. If `facts.move.retains_old` is set, the old state is retained if it fits into
  // `facts.move.spare`. All objects to which the arguments refer must outlive this object.
  PlanSwitchController(SwitchContext facts, PlanPart& part, std::vector<ScriptedSwitch> script,
                       std::optional<RequestSources> sources, Refusal refusal, SwitchListener& listener);
  ~PlanSwitchController();

  // Returns this rank's vote after a step.
  StepVote vote();
  // Called by all ranks after the same step, with the result of their agreement. Throws PeersLost.
  void step_ended(std::int64_t step, const StepVote& agreed);
  // Called by all ranks after the same step. The next phase whose start was undecided begins after step
  // `begin`. May be called repeatedly.
  void set_phase_begin(std::int64_t begin);
  // On rank 0: a user's request to drain a rank. The caller answers it when the rank has left.
  const std::optional<DrainRequest>& drain_request() const { return drain_; }
  // Whether master weights and moments are being moved. A failure during the move leaves no usable state,
  // unless the old state was retained.
  bool is_moving() const { return is_moving_; }
  // Whether the part already matches the new plan after ranks were lost during a move that left usable state.
  // If it does, take_previous_part() returns the old part, if that was retained.
  bool has_moved() const { return has_moved_; }
  PlanPart take_previous_part() { return std::move(earlier_); }
  // Called when the training has failed. Closes all connections of this rank, so that ranks which wait for it
  // fail too.
  void release();

 private:
  struct Prepared {
    std::unique_ptr<PlanSwitch> change{};
    std::string why_not{};
    bool is_lost = false;  // it failed only because other ranks did not connect
    Seconds seconds;
  };
  struct Attempt {
    int number = 0;
    bool is_scripted = false;
    Plan plan;
    std::future<Prepared> prepared;
    std::optional<Prepared> ready{};  // the result of `prepared`, if it was needed before the attempt ended
  };
  void begin(const Plan& plan, bool is_scripted, bool is_placed = false, bool is_phase = false);
  void begin_scripted(const ScriptedSwitch& next);
  Prepared prepare(const Plan& plan, int number, bool is_placed, bool is_phase) const;
  void connect(Prepared& prepared) const;
  // Called if the plan of a phase is refused. The phase then keeps the devices and layers of the current
  // plan.
  void begin_phase_with_present_plan();
  void take_request();
  bool take_next_request();
  bool take_proposal();
  bool is_awaiting_confirmation();
  Prepared take_prepared();
  void refuse_untried(const std::string& why);
  void begin_requested();
  // Called when all ranks are prepared. Returns whether state is sent early during one more step.
  bool begin_precopy();
  void end_precopy();
  void end();
  SwitchOutcome outcome_of(const Attempt& attempt, const Prepared& prepared) const;
  SwitchReport move(PlanSwitch& change);
  void drop_earlier(int number);
  void drop_refused(int number);
  // Returns the lowest rank that refused and its reason; empty if no rank has refused. A rank that refused
  // only because other ranks were missing is returned only if no rank had a different reason.
  std::string first_refusal(const Prepared& own) const;
  std::string broadcast_text(int rank, const std::string& text) const;

  const SwitchContext facts_;
  PlanPart& part_;
  std::vector<ScriptedSwitch> script_;
  const std::optional<RequestSources> sources_;
  const Refusal refusal_;
  SwitchListener& listener_;
  std::size_t next_scripted_ = 0;
  std::int64_t step_ = 0;                       // the last completed step
  std::optional<SwitchRequest> request_;        // rank 0: the request in progress
  std::optional<PlanProposal> proposal_;        // the proposal that led to the request
  std::future<Feasible<Plan>> planned_choice_;  // if the request does not specify a plan
  std::optional<DrainRequest> drain_;
  std::int64_t num_requested_ = 0;  // on rank 0: number of requests accepted
  std::int64_t num_begun_ = 0;      // number of attempts started for accepted requests
  int num_attempts_ = 0;
  Plan requested_plan_;       // the run's plan, as it was requested
  Plan scripted_plan_;        // the initial plan of the run, or its last scripted plan
  bool has_retried_ = false;  // the phase that is due has been retried with the current plan
  std::optional<Attempt> attempt_;
  bool is_moving_ = false, has_moved_ = false;
  PlanPart earlier_;
  int num_dropped_ = 0;         // epochs of the Comm that are dropped or being dropped
  std::future<void> dropping_;  // asynchronous, because closing connections would delay the next step
};

}  // namespace optimus
