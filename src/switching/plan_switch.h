// PlanSwitch: moves one rank from the run's present plan to the next while the run continues.
//
//   auto next = PlanSwitch::create({model, comm, engine_options}, part, plan, epoch);  // on a thread
//   next->prepare(deadline);                             // same thread: connects while steps continue
//   next->begin_precopy(agree_on_precopy(…), part);      // between two steps; the next step computes
//   const SwitchReport report = next->run(part);         // between two steps, by all ranks
//
// If a plan does not use a rank, the rank's part is empty; the rank still participates in switches. Read
// next: switching/move.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "switching/move.h"

namespace optimus {

// Counters and statistics of an engine that are not part of the sharded state.
struct EngineCounters {
  std::int64_t num_updates = 0;
  LossScale loss_scale{};
  NoiseScale noise{};
  Fp8History fp8{};
};

// One rank's part of a plan. The engine keeps a reference to the parameters.
struct PlanPart {
  Plan plan;  // its devices are ranks
  std::unique_ptr<Parameters> parameters{};
  std::unique_ptr<Engine> engine{};
  std::optional<EngineCounters> counters{};  // set while a plan change has removed the engine
  bool is_empty() const { return engine == nullptr; }
};

// The result of a plan change, over all ranks.
struct SwitchReport {
  Bytes moved;       // bytes received; each element counts once
  Bytes early;       // the part of `moved` that was received before the pause
  Bytes precopied;   // bytes of gradients that were sent in the pause because of pre-copy
  Bytes minimum;     // PlanChange::minimum
  Seconds paused;    // on this rank
  Bytes peak_bytes;  // peak of masters and moments, old and new, on any one rank
};

struct SwitchContext {
  const ModelSpec& model;
  Comm& comm;
  EngineOptions engine;  // rank and comm are set by PlanSwitch
  MoveOptions move{};
};

class PlanSwitch {
 public:
  // Computes the change without modifying anything. `part` must stay the rank's part until run().
  // `is_placed`: the devices of `to` are ranks, and need not be mapped to ranks. `is_phase`: the batch or the
  // sequence length may change.
  static Feasible<std::unique_ptr<PlanSwitch>> create(const SwitchContext& context, const PlanPart& part,
                                                      const Plan& to, int epoch, bool is_placed = false,
                                                      bool is_phase = false);
  // For a membership change, whose plan is known to be possible: the devices of `part.plan` are the new
  // ranks, and lost ranks are numbered after them. Leaving ranks participate and are no longer in the Comm's
  // world afterwards. context.move.retains_old should be set.
  PlanSwitch(const SwitchContext& context, const PlanPart& part, const Plan& to,
             const AvailableRanks& present_ranks);
  ~PlanSwitch();

  const PlanChange& change() const { return change_; }
  const Plan& plan() const { return change_.to; }
  int epoch() const { return epoch_; }
  Bytes peak_bytes() const { return mover_->peak_bytes(); }
  // Called before run(). If context.move.retains_old is set, keeps it set only if retaining the old state
  // needs at most `spare` bytes of extra memory.
  void retain_old_within(Bytes spare);
  bool retains_old() const { return context_.move.retains_old; }
  // Connects the groups of the new plan in advance. Called from another thread.
  CommOutcome<void> prepare(const Deadline& deadline);

  // This rank's contribution to the decision to send state early (switching/precopy.h), after prepare().
  struct PrecopyVote {
    bool is_worth_it = false;
    std::size_t num_waves = 0;
  };
  PrecopyVote precopy_vote(const PlanPart& part) const;
  // Starts to send state, with the agreed terms, while the next step computes. The part's engine must exist
  // until end_precopy().
  void begin_precopy(const PrecopyTerms& terms, PlanPart& part);
  // Called before run(). Returns why pre-copy failed, in which case run() must not be called; empty if it
  // succeeded.
  std::string end_precopy(PlanPart& part);
  // Makes the switch. Throws PeersLost and exceptions of the engine's constructor; the part is then torn
  // (matches neither plan), unless the old state is retained: then `part` is either the old part, without
  // its engine, or the new part, and the old one is in earlier(). A rank drops the old state only after all
  // ranks have the new one. The Comm is in the new epoch afterwards; groups of earlier epochs can be
  // dropped.
  SwitchReport run(PlanPart& part);
  PlanPart& earlier() { return earlier_; }

 private:
  // Makes the engine counters equal on all ranks; ranks without an engine receive them from the other
  // ranks.
  void agree_on_counters(const PlanPart& part);
  void add_history(const PlanPart& part, std::vector<double>& numbers) const;
  Fp8History history_in(std::span<const double> numbers) const;
  void make_engine(PlanPart& part) const;
  SwitchReport summarize(const MoveReport& own) const;
  CommOutcome<void> measure_links(const Deadline& deadline);
  // add_update appends the inputs of the last update to the counters; take_update reads them.
  void add_update(const PlanPart& part, std::vector<double>& numbers) const;
  void take_update(std::span<const double> numbers);

  PlanSwitch(const SwitchContext& context, const PlanPart& part, PlanChange change,
             const AvailableRanks& present_ranks, int epoch);

  SwitchContext context_;
  const AvailableRanks present_ranks_;
  const PlanChange change_;
  const int epoch_, rank_;
  PlanPart earlier_;
  std::unique_ptr<Parameters> next_;  // null if the new plan does not use the rank
  std::unique_ptr<StateMover> mover_;
  std::vector<Group> groups_;
  std::int64_t num_updates_ = 0;
  NoiseScale noise_;
  LossScale loss_scale_;
  Fp8History fp8_history_;
  bool has_precopy_ = false;
  UpdateRecord update_;    // inputs of the last update, if state was sent early
  double link_speed_ = 0;  // measured, in bytes per second; 0 if not measured
  Bytes needed_bytes_;     // memory that the new plan needs
};

// Called by all ranks after the same step: whether state is sent early, and how much. `own` is null if the
// rank has refused the plan; nothing is sent early then. Throws PeersLost.
PrecopyTerms agree_on_precopy(Comm& comm, const PlanSwitch* own, const PlanPart& part, Seconds timeout);

}  // namespace optimus
