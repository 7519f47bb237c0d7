// PlanSwitch: how one rank comes from the plan that a run is on to the next while the run goes on.
//
//   PlanSwitch next({model, comm, engine_options}, part, plan, epoch);   // a thread: refuses, or works everything out
//   next.prepare(deadline);                                                   // the same thread: connects while steps go on
//   next.begin_early(agree_on_early(…), part);                                // between two steps; the next one computes meanwhile
//   const SwitchReport report = next.run(part);                               // between two steps, by all ranks of the run
//
// A rank may have no use in a plan: its part is then empty, and it takes part in switches all the same. Read next: switching/move.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "switching/move.h"

namespace optimus {

// One rank's part in a plan. The engine refers to the parameters.
// What an engine counts beside the state.
struct EngineNumbers {
  std::int64_t num_updates = 0;
  LossScale loss_scale{};
  NoiseScale noise{};
  Fp8History fp8{};
};

struct PlanPart {
  Plan plan;  // its devices are ranks
  std::unique_ptr<Parameters> parameters{};
  std::unique_ptr<Engine> engine{};
  std::optional<EngineNumbers> numbers{};  // while a change of plan has taken the engine away
  bool is_empty() const { return engine == nullptr; }
};

// What a change of plan was, for all ranks together.
struct SwitchReport {
  Bytes moved;      // as it was received, each element once
  Bytes early;      // of that, before the pause
  Bytes precopied;  // sent again because of it: gradients
  Bytes minimum;    // as PlanChange has it
  Seconds paused;   // at this rank
  Bytes most_held;  // of masters and moments, old and new, by any one rank
};

struct SwitchFacts {
  const ModelSpec& model;
  Comm& comm;
  EngineOptions engine;  // rank and comm are filled in
  MoveOptions move{};
};

class PlanSwitch {
 public:
  // Works everything out; touches nothing. Throws UserError when there cannot be such a switch. `part` must be the rank's until run().
  // is_placed: the devices of `to` are ranks. is_phase: of another batch or length.
  PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to, int epoch,
             bool is_placed = false, bool is_phase = false);
  // After others were lost, or when some come or leave: `part.plan` has the ranks that they have now, and those who are gone behind them.
  // Who leaves takes part, and is gone from the Comm's world afterwards. facts.move.keeps_old should be set.
  PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to, const RanksThere& there);
  ~PlanSwitch();

  const PlanChange& change() const { return change_; }
  const Plan& plan() const { return change_.to; }
  int epoch() const { return epoch_; }
  Bytes most_held() const { return mover_->most_held(); }
  // Before run(): the old state is kept until all have the new one, as facts.move.keeps_old says, where that takes so much more at most.
  void keep_old_within(Bytes spare);
  bool keeps_old() const { return facts_.move.keeps_old; }
  // Beforehand, from another thread.
  CommOutcome<void> prepare(const Deadline& deadline);

  // What this rank has to say about sending state early (switching/precopy.h), when it is prepared.
  struct EarlyWord {
    bool is_worth_it = false;
    std::size_t num_waves = 0;
  };
  EarlyWord early_word(const PlanPart& part) const;
  // While the next step computes, what all have agreed on. The part's engine must live until end_early().
  void begin_early(const PrecopyTerms& terms, PlanPart& part);
  // Before run(). Why it failed, so that there is no run(); empty: it did not.
  std::string end_early(PlanPart& part);
  // Throws PeersLost and whatever making an engine throws; the part is then torn (neither plan's). Ends in the new epoch of the Comm;
  // groups of earlier ones can be dropped. Where the old state is kept, a failure leaves the part as it was, without its engine, or
  // as it is to be, and then earlier() as it was: nobody has the one without all having had the other.
  SwitchReport run(PlanPart& part);
  PlanPart& earlier() { return earlier_; }

 private:
  // What an engine counts; ranks without one learn it from the others.
  void agree_on_numbers(const PlanPart& part);
  void add_history(const PlanPart& part, std::vector<double>& numbers) const;
  Fp8History history_in(std::span<const double> numbers) const;
  void make_engine(PlanPart& part) const;
  SwitchReport sum_up(const MoveReport& own) const;
  CommOutcome<void> measure_links(const Deadline& deadline);
  // What the last update worked with, among what engines count.
  void add_update(const PlanPart& part, std::vector<double>& numbers) const;
  void take_update(std::span<const double> numbers);

  PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to, const RanksThere& there,
             int epoch);

  SwitchFacts facts_;
  const RanksThere there_;
  const PlanChange change_;
  const int epoch_, rank_;
  PlanPart earlier_;
  std::unique_ptr<Parameters> next_;  // null: the rank has no use in the new plan
  std::unique_ptr<StateMover> mover_;
  std::vector<Group> groups_;
  std::int64_t num_updates_ = 0;
  NoiseScale noise_;
  LossScale loss_scale_;
  Fp8History fp8_history_;
  bool is_early_ = false;
  UpdateFacts update_;     // the last one, where state was sent early
  double link_speed_ = 0;  // bytes a second, as it was measured; 0: it was not
  Bytes needed_;           // by the new plan
};

// By all ranks after the same step: whether state is sent early, and what. `own` is null where the rank has refused the plan; then nothing
// is. Throws PeersLost.
PrecopyTerms agree_on_early(Comm& comm, const PlanSwitch* own, const PlanPart& part, Seconds patience);

}  // namespace optimus
