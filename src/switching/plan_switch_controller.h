// The plan changes of one run: scripted ones (--switch-at) and those that are requested while it runs
// (control.h). Every rank has one PlanSwitchController, and all of them pass through the same states after
// the same steps:
//
//   requested at rank 0 ──▶ all ranks receive the plan ──▶ each prepares on a thread, steps continue
//                                                            ├──▶ all are prepared: the switch
//                                                            └──▶ one has refused: no change
//
// A proposal based on a provisional finding is prepared in the same way; rank 0 reports itself as prepared
// only when the finding is confirmed, and refuses the plan if the proposal is cancelled. If it shortens the
// pause, all prepared ranks send state early during one more step (switching/precopy.h). Rank 0 decides: it
// accepts requests, one at a time, and answers them. Besides the agreement after each step, a plan needs
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

// How a request for another plan ended. The kinds made, refused and cancelled are known to all ranks.
struct SwitchOutcome {
  enum class Kind {
    made,
    refused,    // by a rank
    cancelled,  // a provisional proposal whose finding was not confirmed; on other ranks: refused
    not_tried,  // on rank 0: the request is invalid, or the run already uses that plan
  };
  Kind kind = Kind::made;
  std::string why_not{};                   // the rank that refused and its reason; made: empty
  std::string why{};                       // reason for the switch; only rank 0 knows it
  bool is_phase = false;                   // another phase of the training began with it
  std::optional<PlanProposal> proposal{};  // the proposal that led to it; only rank 0 knows it
  Plan from, to;                           // as requested; only the number of their devices matters
  Seconds prepared{};                      // time that this rank prepared
  SwitchReport report{};

  bool is_made() const { return kind == Kind::made; }
};

// The training, which acts on the outcome of every request: scripted, requested by a user, or proposed.
class SwitchListener {
 public:
  virtual ~SwitchListener() = default;
  // Drops all references to the part's engine and parameters.
  virtual void before_switch() = 0;
  // Returns the line that is shown to users.
  virtual std::string switch_ended(const SwitchOutcome& outcome) = 0;
};

class PlanSwitchController {
 public:
  using Refusal = std::function<std::optional<std::string>(const PlanSwitch&)>;
  // The sources of requests; only on rank 0.
  struct RequestSources {
    ControlFolder& requests;
    // Returns the best plan for the same batch and sequence length. Called on a separate thread.
    std::function<Feasible<Plan>(const Plan& now)> choose;
    bool can_drain = false;               // whether ranks may leave the run
    ProposalSource* proposals = nullptr;  // null if the run does not adapt
  };
  // `refusal` is called on a separate thread and returns why this rank cannot make a switch, if so. With
  // `facts.move.retains_old`, the old state is retained if it fits into `facts.move.spare`. Everything that
  // the arguments refer to must outlive this object.
  PlanSwitchController(SwitchContext facts, PlanPart& part, std::vector<ScriptedSwitch> script,
                       std::optional<RequestSources> sources, Refusal refusal, SwitchListener& listener);
  ~PlanSwitchController();

  // Returns this rank's vote after a step.
  StepVote vote();
  // Called by all ranks after the same step, with the result of their agreement. Throws PeersLost.
  void step_ended(std::int64_t step, const StepVote& agreed);
  // Called by all ranks after the same step: the next phase whose first step was undecided begins after step
  // `begin`. May be called repeatedly.
  void set_phase_begin(std::int64_t begin);
  // On rank 0: a user's request to drain a rank. The caller answers it when the rank has left.
  const std::optional<DrainRequest>& drain_request() const { return drain_; }
  // Whether master weights and moments are being moved. A failure during the move leaves no usable state,
  // unless the old state was retained.
  bool is_moving() const { return is_moving_; }
  // If ranks were lost during a move that left usable state: whether the part already matches the new plan.
  // If not, take_previous_part() returns the old part.
  bool has_moved() const { return has_moved_; }
  PlanPart take_previous_part() { return std::move(earlier_); }
  // Called when the training has failed: closes all connections of this rank, so that ranks which wait for
  // it fail too.
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
  // A phase begins even if its plan is refused: it then uses the devices and layers of the present plan.
  void begin_phase_with_present_plan();
  void take_request();
  bool take_next_request();
  bool take_proposal();
  bool is_awaiting_confirmation();
  Prepared take_prepared();
  void refuse_untried(const std::string& why);
  void begin_requested();
  // Called when all ranks are prepared: decides whether state is sent early during one more step.
  bool begin_precopy();
  void end_precopy();
  void end();
  SwitchOutcome outcome_of(const Attempt& attempt, const Prepared& prepared) const;
  SwitchReport move(PlanSwitch& change);
  void drop_earlier(int number);
  void drop_refused(int number);
  // Returns the lowest rank that refused and its reason; empty if none has refused. A rank that refused only
  // because other ranks were missing is named only if no rank had a different reason.
  std::string first_refusal(const Prepared& own) const;
  std::string broadcast_text(int rank, const std::string& text) const;

  const SwitchContext facts_;
  PlanPart& part_;
  std::vector<ScriptedSwitch> script_;
  const std::optional<RequestSources> sources_;
  const Refusal refusal_;
  SwitchListener& listener_;
  std::size_t next_scripted_ = 0;
  std::int64_t step_ = 0;                       // the last one that has ended
  std::optional<SwitchRequest> request_;        // rank 0: the request in progress
  std::optional<PlanProposal> proposal_;        // the proposal that led to the request
  std::future<Feasible<Plan>> planned_choice_;  // its plan, if the request does not specify one
  std::optional<DrainRequest> drain_;
  std::int64_t num_requested_ = 0;  // on rank 0: number of requests accepted
  std::int64_t num_begun_ = 0;      // attempts begun for them
  int num_attempts_ = 0;
  Plan requested_plan_;       // the run's plan, as it was requested
  Plan scripted_plan_;        // the plan that the run began with, or its last scripted one
  bool has_retried_ = false;  // the phase that is due has been retried with the present plan
  std::optional<Attempt> attempt_;
  bool is_moving_ = false, has_moved_ = false;
  PlanPart earlier_;
  int num_dropped_ = 0;         // epochs of the Comm that are dropped or being dropped
  std::future<void> dropping_;  // closing connections takes too long for the time between two steps
};

}  // namespace optimus
