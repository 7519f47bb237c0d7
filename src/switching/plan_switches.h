// The changes of plan of one run: those of a script (--switch-at), and those that somebody asks for while it runs (control.h). Every
// rank has one of these, and all go through the same states after the same steps:
//
//   asked for at rank 0 ──▶ all know, and get the plan ──▶ each prepares on a thread, steps go on ──▶ all are prepared: the switch
//                                                                                          └──▶ one has refused: nothing happened
//
// A wish on suspicion is prepared likewise; rank 0 says that it is prepared when the suspicion has proved right, and refuses when it has not.
// Where it shortens the pause, all that are prepared send state early during one step more (switching/precopy.h).
// Rank 0 is the one that decides: it takes requests, one at a time, and answers them. Nobody talks about a plan beside the steps'
// own agreement but for one broadcast. What a script says comes after exactly its step. Read next: switching/plan_switch.h.
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

// How it ended, the same at all ranks.
struct SwitchEnd {
  std::string why_not{};           // refused: by whom and why; empty: it was done
  std::string why{};               // it was made; only rank 0 knows
  bool is_phase = false;           // another phase of the training began with it
  std::optional<PlanProposal> wish{};  // it came from; only rank 0 knows
  Plan from, to;                   // as they were asked for: of their devices only the number counts
  Seconds prepared;                // by this rank
  SwitchReport report{};
};

// What the training does about it.
struct SwitchHooks {
  std::function<void()> let_go;  // before: what refers to the part's engine or parameters ends
  std::function<std::string(const SwitchEnd&)> done;  // returns the line that tells people of it
};

class PlanSwitches {
 public:
  // Rank 0: of those who may ask.
  struct Outside {
    ControlFolder& requests;
    // The best plan for the batch and length of this one; on a thread of its own; throws UserError.
    std::function<Plan(const Plan& now)> choose;
    bool can_drain = false;                                                       // ranks may leave
    std::function<std::optional<PlanProposal>()> wish = [] { return std::nullopt; };  // after a step
    // Of a wish on suspicion, after each step while it is prepared.
    std::function<ProvisionalStatus()> suspicion = [] { return ProvisionalStatus::confirmed; };
    std::function<void()> refused = [] {};  // a wish that was not even tried: the run is on that plan
  };
  // check: throws UserError when this rank cannot make the switch; on a thread of its
  // own. facts.move.keeps_old: where facts.move.spare has room for that. All must outlive this.
  PlanSwitches(SwitchFacts facts, PlanPart& part, std::vector<ScriptedSwitch> script,
               std::optional<Outside> outside, std::function<void(const PlanSwitch&)> check);
  ~PlanSwitches();

  // What this rank says after a step.
  StepWord word();
  // After a step, by all ranks with what they agreed on. Throws PeersLost.
  void step_ended(std::int64_t step, const StepWord& agreed, const SwitchHooks& hooks);
  // By all ranks behind the same step: the next phase that has no step yet begins behind this one. Said once or more often.
  void know_phase(std::int64_t begin);
  // Rank 0: the rank that is to leave, as somebody asked for. It is answered by whoever sees it done.
  const std::optional<DrainRequest>& drain_request() const { return drain_; }
  // Whether masters and moments are on their way: what fails then leaves no state, unless the old one was kept.
  bool is_moving() const { return is_moving_; }
  // When others were lost in a move that has left something: whether the part is as the new plan says; and as it was, where it is not.
  bool has_moved() const { return has_moved_; }
  PlanPart take_earlier() { return std::move(earlier_); }
  // When the training has failed: closes all connections of the rank, so that whoever waits for it fails too.
  void let_go();

 private:
  struct Prepared {
    std::unique_ptr<PlanSwitch> change{};
    std::string why_not{};
    bool is_lost = false;  // only because others did not come
    Seconds seconds;
  };
  struct Attempt {
    int number = 0;
    bool is_scripted = false;
    Plan plan;
    std::future<Prepared> prepared;
    std::optional<Prepared> ready{};  // what came of that, where it was looked at before the end
  };
  void begin(const Plan& plan, bool is_scripted, bool is_placed = false, bool is_phase = false);
  void begin_scripted(const ScriptedSwitch& next);
  Prepared prepare(const Plan& plan, int number, bool is_placed, bool is_phase) const;
  // A phase comes whatever becomes of its plan: else with the devices and layers of now.
  void begin_phase_as_it_is(const SwitchHooks& hooks);
  void take_request();
  bool take_next_request();
  bool take_wish();
  bool is_held_back();
  Prepared take_prepared();
  void refuse_request(const std::string& why);
  void begin_asked();
  // All are prepared, and a step is left: whether state is sent early during that.
  bool begin_early();
  void end_early();
  void end(const SwitchHooks& hooks);
  SwitchReport move(PlanSwitch& change);
  void drop_earlier(int number);
  void drop_refused(int number);
  // The lowest rank that has refused says why; empty: none has. Who missed others comes behind those that refused by themselves.
  std::string first_refusal(const Prepared& own) const;
  std::string from_rank(int rank, const std::string& text) const;

  const SwitchFacts facts_;
  PlanPart& part_;
  std::vector<ScriptedSwitch> script_;
  const std::optional<Outside> outside_;
  const std::function<void(const PlanSwitch&)> check_;
  std::size_t next_scripted_ = 0;
  std::int64_t step_ = 0;               // that has ended
  std::optional<PlanRequest> request_;  // rank 0: the one that is worked on
  std::optional<PlanProposal> wish_;    // that it comes from
  std::future<Plan> chosen_;            // for it, where it names no plan
  std::optional<DrainRequest> drain_;
  std::int64_t num_asked_ = 0;  // rank 0: requests taken
  std::int64_t num_begun_ = 0;  // of those that were asked for
  int num_attempts_ = 0;
  Plan asked_;                // that the run is on, as it was asked for
  Plan scripted_;             // that the run began with, or came to by its script
  bool has_retried_ = false;  // the phase that is due
  std::optional<Attempt> attempt_;
  bool is_moving_ = false, has_moved_ = false;
  PlanPart earlier_;
  int num_dropped_ = 0;         // epochs of the Comm that are gone, or go
  std::future<void> dropping_;  // closing connections takes longer than a step may wait
};

}  // namespace optimus
