// What rank 0 makes of what all ranks have seen: finds what slows the run down, asks which plans would be better as the machines are now,
// lets a policy choose, and looks afterwards whether the gain has come.
//
//   Deciding deciding(facts, plan, calibration);
//   after steps:   deciding.see(observation);                 // quick: answers are worked out on a thread
//                  if (auto wish = deciding.wish()) …         // switching/plan_switches.h does it; of a mere suspicion it prepares the answer
//                  deciding.took(plan, …);                    // the run is on another plan
//
// Pure but for the thread. One thread calls. Read next: adapt/detect.h, adapt/respond.h, adapt/decide.h.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/comings.h"
#include "adapt/decide.h"
#include "adapt/phase.h"
#include "adapt/plan_wish.h"
#include "adapt/prediction_memory.h"
#include "adapt/probed.h"
#include "adapt/respond.h"
#include "adapt/time_line.h"

namespace optimus {

// Hosts as nodes of a cluster: device i is rank i. Ranks of a host that do not follow each other make all one node.
HardwareProfile profile_of(const HardwareProfile& one_node, const std::vector<std::string>& hosts);

class Deciding {
 public:
  struct Foretold {
    TimeLine line;
    double begins = 0;  // by the clock
  };
  struct Facts {
    const ModelSpec& model;
    Policy policy;
    HardwareProfile machines;  // as the cost model knows them
    RecoveryCosts costs{};
    // What is trained, on a cluster, with the batch and length of the plan of now; any thread.
    std::function<Demand(const Cluster&, const Plan& now)> demand;
    std::function<bool(const Plan&)> can_run;  // by the engine, and it may be wished for; any thread
    std::function<double()> clock;             // seconds
    ResponseLimits limits{};
    // What happens to machines, instead of what is found: for the oracle.
    std::optional<Foretold> foretold{};
    // Also where nothing is slow, once, when it has been measured what steps take.
    bool looks_for_better = false;
    std::int64_t last_step = 0;  // of the run; 0: nobody says
    // Ranks speak through host memory alone: messages show what other plans' channels would take, and whose network is slow.
    bool has_host_links = true;
    std::shared_ptr<const LearnedPolicy> network{};  // of policy.network, where it is not the shipped one
    Comings comings{};  // until now, by the clock; those that come have a Deciding of their own
    ExpectedLife life{};
    // Steps that a loss undoes on a plan whose steps take so long. Nothing: whether state is held twice is not for a policy to change; any thread.
    std::function<double(const Plan&, double step_seconds)> undone_steps{};
  };
  // The calibration is kept by whoever calls: it outlives changes of who takes part.
  Deciding(Facts facts, const Plan& plan, Calibration& calibration);
  ~Deciding();

  // In the order of steps.
  void see(const Observation& seen);
  // Of each step that this rank knows it of.
  void see_loss(double loss) { plateau_.see(loss); }
  // Where a ring's time does not say whose network is slow, somebody was left out who may be well again, or steps do not show what other plans'
  // channels take: whether all ranks are to look (switching/probe.h). True once; probed() follows.
  bool wants_to_probe();
  const Look& look() const { return look_; }
  // Of each rank.
  std::vector<int> nodes() const;
  void probed(const Probed& seen);
  // What is in force.
  const std::vector<Finding>& findings() const { return findings_; }
  // Whether answers are being worked out.
  bool is_weighing() const {
    return weighing_.valid() && weighing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  // Once, when there is one.
  std::optional<PlanWish> wish();
  // Once for conditions that were weighed and have brought no wish, or that no plan answers; and for signs of another phase.
  // One at a time, in their order.
  std::optional<PlanStay> stay() {
    if (stays_.empty()) return std::nullopt;
    PlanStay first = std::move(stays_.front());
    stays_.pop_front();
    return first;
  }
  // The run is on this plan from here on; wish: as it was wished for, or not.
  void took(const Plan& plan, const std::optional<PlanWish>& wish, std::int64_t step);
  void refused();
  // Of a wish on suspicion: what has become of it. When that was wrong, or there is no time for it, withdrawn() follows.
  Suspicion suspicion() const;
  void withdrawn();
  // Once, some steps after a plan that was wished for: the gain of steps a second, as it was. Never where something else became slow meanwhile.
  std::optional<double> realised();

 private:
  static constexpr int kHeld = 14;                     // observations, until a new detector has seen enough
  using RanKey = std::pair<std::string, std::string>;  // plan, conditions

  void begin_plan();
  void watch(const std::set<int>& by_first_steps = {});
  void weigh_if_due();
  std::vector<Finding> foretold(std::int64_t step) const;
  double until_foretold() const;  // something else: seconds
  void note_how_it_runs();
  void note_stay(PlanStay stay, const std::vector<Condition>& conditions);
  void note_what_no_plan_answers();
  void note_phase(const Observation& seen);
  void name_nodes();
  void look_at_channels();
  void want_to_look(const Look& look);
  bool is_quiet() const;  // nothing is found that a plan could answer
  bool is_unexplained() const;
  std::set<int> quiet_devices() const;
  bool is_misjudged() const;  // what was expected of the plan's stages, since its first steps
  // A step is so many times the plan's usual one; nothing where that is not known.
  std::optional<double> times_usual(std::size_t last_steps) const;
  bool are_steps_longer(std::size_t last_steps) const;  // than the plan's usual ones, if these are known
  // Without those that concern the plan and make no step longer: a link may be slower than before in what no step waits for. A stage that is
  // too heavy has been so from the begin.
  std::vector<Finding> felt(std::vector<Finding> findings, std::size_t last_steps) const;
  static std::string evidence_of(const std::vector<Finding>& findings);
  void look_at_those_away();
  double until_next_look() const;
  void name_nodes_of(Finding& finding) const;
  void note_who_is_well(const Probed& seen);
  bool decides() const { return facts_.policy.kind != PolicyKind::never; }
  void hold(std::vector<Finding> findings);
  void note_hidden();
  void put_away(Finding finding);
  void add_unless_found(const std::vector<Finding>& known);
  bool is_found(const Finding& known) const;
  bool is_part_of(const Condition& one, const Condition& known) const;
  void suspect(const Observation& seen);
  void weigh_suspicion();
  void begin_weighing(bool is_suspicion);
  std::string question_key() const;  // the same: nothing new to weigh
  std::vector<Condition> conditions(const std::vector<Finding>& findings) const;
  std::vector<Condition> conditions() const { return conditions(findings_); }
  // Of those that a plan has to do with.
  std::vector<Condition> concerning(const Plan& plan, const std::vector<Condition>& conditions) const;
  std::string key_of(const std::vector<Condition>& conditions, const Plan& plan) const;
  // Where no condition concerns a plan, it takes the same on other nodes of the kind.
  RanKey ran_key(const Plan& plan, const std::string& conditions) const;
  // What came of changes that were wished for.
  struct Judged {
    int switches = 0, count = 0;    // all of them; those that promised a gain that is known by now
    int num_missed = 0;             // whose seconds are known
    double promised = 0, kept = 0;  // parts of the step, added up
    double misses = 0,
           squares = 0;     // logarithms of seconds over those predicted, and their squares, added up
    double shortfalls = 0;  // squares of those that took longer than predicted
    // How unsure predictions of plans that have not run have proved; as if some had been right before.
    double doubt() const;
  };
  void judge(double predicted, double realised);
  void note_what_both_took();
  std::vector<Condition> began_since() const;
  bool is_held_up() const;
  // Of the last change that was wished for: the realised gain, once it is known whose it is.
  std::optional<double> verdict() const;
  double since_switch() const;
  static void tell(const Judged& judged, Situation& situation);
  // On its thread. Uses nothing of this object that changes, but for memory_, which is its own.
  struct Question {
    Plan plan;
    std::vector<Plan> earlier;  // that the run may go back to
    std::vector<Condition> conditions;
    std::map<std::pair<Cause, int>, double> spreads;  // of conditions' factors, as logarithms
    std::vector<OngoingCondition> ongoing;
    HardwareProfile machines;
    double seconds = 0, since_switch = 0, doubt = 0, exploration_left = 0;
    double run_left = Situation{}.run_left;
    RoleRates rates{};
    double ring_factor = 1;
    std::optional<double> predicted, realised, true_rest;
    bool is_suspicion = false;
    bool is_settled = true;  // steps were measured under these conditions
    Judged judged;
    std::map<RanKey, double> ran;
    // Of a step of the only earlier plan, if that was quicker and nothing has happened since.
    std::optional<double> seconds_before;
    std::string evidence;
  };
  struct Answer {
    std::optional<PlanWish> wish{};
    std::optional<PlanStay> stay{};
    std::vector<Condition> conditions{};
    double pause = 0;  // that the wish is to cost
  };
  Answer weigh(const Question& question) const;
  std::vector<PlannedOption> priced_options(const Question& question) const;
  void learn_from(const Question& question, const PlanOption& runs) const;
  // How unsure a step is, where conditions make up this part of it and their own factors are unsure.
  double doubt_of_conditions(const Question& question, const Plan& plan, double part) const;
  Question question(bool is_suspicion) const;

  const Facts facts_;
  const Cluster cluster_;  // of facts_.machines
  Calibration& calibration_;
  Plan plan_;
  std::optional<Plan> home_;         // the plan before the first that was wished for
  std::optional<Plan> left_;         // the plan before this one, unless the run has gone back from that
  std::optional<Plan> before_plan_;  // the plan before the last wish
  std::vector<StageWork> work_;      // of plan_
  std::unique_ptr<Detector> detector_, hasty_;
  struct Away {
    Finding finding;              // of what the plan does not use, or what it hides
    double since = 0, until = 0;  // seconds by the clock: not seen; believed to be over
    bool seemed_well = false;     // at the last look
  };
  std::vector<Away> away_;
  std::optional<double> last_look_;  // at those who are away, by the clock
  std::map<std::pair<Cause, int>, double> tries_;
  std::vector<Finding> findings_, held_;  // held: from before the plan, until the new one can tell
  std::vector<Finding> suspected_;        // where nothing is found: by a few steps
  double suspects_at_ = 0,
         suspicion_wait_ = 0;  // not before, by the clock: the last one was a while ago, or wrong
  bool is_suspicion_ = false;  // what is weighed, or wished for
  int num_suspecting_ = 0;     // observations since that was wished for
  double suspected_at_ = 0;    // likewise, by the clock
  std::deque<double> recent_;  // seconds of steps on this plan
  // What was measured because rings could not tell their nodes apart; while they cannot, it is believed for a while.
  struct Networks {
    std::vector<double> slower{};  // [node]: than the middle one; none: nobody has looked, or too few to tell
    double next = 0, wait = 0;     // when it is worth another look
    int num_quiet = 0;             // observations since they could not
  };
  std::optional<Networks> networks_;
  enum class Probing { no, wanted, under_way } probing_ = Probing::no;
  Look look_;                           // that is wanted or under way
  int num_waited_ = 0;                  // observations, since it was asked for
  int num_seen_ = 0, num_watched_ = 0;  // observations: of this plan; by these detectors
  // Of the last observations: longer than the plan's usual steps, and nothing is found.
  int num_unexplained_ = 0;
  std::int64_t first_step_ = 0;  // what was seen of earlier ones was another plan's
  // Devices of the plan before this one that were not slow; none once stages are measured by themselves.
  std::set<int> quiet_before_;
  std::int64_t seen_step_ = 0;                          // the last one
  std::deque<std::pair<std::string, double>> history_;  // conditions and seconds of a step, of late
  std::map<RanKey, double> ran_;                        // seconds of a step
  std::map<RanKey, double> least_;  // the same where nothing was found: what is found late is in ran_ by then
  std::string weighed_;             // the conditions that were weighed last
  double weighed_at_ = 0, wait_ = 0, switched_at_ = -1e9;
  std::future<Answer> weighing_;
  std::deque<PlanStay> stays_;
  std::set<std::string> told_;  // conditions on this plan that were told
  LossPlateau plateau_;
  LengthMix lengths_;
  bool is_plateau_told_ = false;
  mutable PredictionMemory memory_;
  bool is_clouded_ = false;  // something else has slowed the plan down while its gain was measured
  bool was_slow_ = false, has_looked_for_better_ = false, has_looked_at_channels_ = false;
  struct Asked {
    std::vector<Condition> conditions;  // that it is to answer
    double pause = 0;                   // that it is to cost
    double seconds = 0;                 // of a step, then
  };
  std::optional<Asked> asked_;  // the wish that is under way
  // Of the last one that was done: seconds of a step before it, or before what came of a suspicion; what it was to answer, and to cost.
  double before_ = 0, pause_ = 0;
  std::vector<Condition> wished_for_;
  double began_ = 0;
  double explored_ = 0;  // seconds that changes of plan, and steps on plans that were worse, have cost
  std::optional<double> predicted_, realised_;
  Judged judged_;
  bool is_told_ = true;
};

}  // namespace optimus
