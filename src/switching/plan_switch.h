// Moves one rank from the current plan to the next one while the run continues.
//
//   auto next = PlanSwitch::create({model, comm, engine_options}, part, plan, epoch);  // on a thread
//   next->prepare(deadline);                             // same thread: connects while steps continue
//   next->begin_precopy(agree_on_precopy(…), part);      // between two steps; sends during the next
//   const SwitchReport report = next->run(part);         // between two steps, by all ranks
//
// If a plan does not use a rank, the rank's part is empty, but the rank still participates in switches. Read
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
  Plan plan;  // devices in this plan are ranks
  std::unique_ptr<Parameters> parameters{};
  std::unique_ptr<Engine> engine{};
  std::optional<EngineCounters> counters{};  // set during a plan change, while there is no engine
  bool is_empty() const { return engine == nullptr; }
};

// The result of a plan change, aggregated over all ranks.
struct SwitchReport {
  Bytes moved;       // bytes received; each element is counted once
  Bytes early;       // the part of `moved` that was received before the pause
  Bytes precopied;   // bytes of gradients that were sent during the pause because of pre-copy
  Bytes minimum;     // PlanChange::minimum
  Seconds paused;    // on this rank
  Bytes peak_bytes;  // peak of old and new masters and moments, maximum over all ranks
};

struct SwitchContext {
  const ModelSpec& model;
  Comm& comm;
  EngineOptions engine;  // rank and comm are set by PlanSwitch
  MoveOptions move{};
};

class PlanSwitch {
 public:
  // Computes the change without modifying anything. `part` must remain the rank's part until run().
  // `is_placed` means that the devices of `to` are ranks already and need no mapping. `is_phase` means that
  // the batch or the sequence length may change.
  static Feasible<std::unique_ptr<PlanSwitch>> create(const SwitchContext& context, const PlanPart& part,
                                                      const Plan& to, int epoch, bool is_placed = false,
                                                      bool is_phase = false);
  // For a membership change, whose plan is known to be feasible. The devices of `part.plan` are the new
  // ranks, and lost ranks are numbered after them. Leaving ranks take part in the switch and then leave the
  // Comm's world. context.move.retains_old should be set.
  PlanSwitch(const SwitchContext& context, const PlanPart& part, const Plan& to,
             const AvailableRanks& present_ranks);
  ~PlanSwitch();

  const PlanChange& change() const { return change_; }
  const Plan& plan() const { return change_.to; }
  int epoch() const { return epoch_; }
  Bytes peak_bytes() const { return mover_->peak_bytes(); }
  // Called before run(). Retains the old state during the move if this needs at most `spare` bytes of extra
  // memory.
  void retain_old_within(Bytes spare);
  bool retains_old() const { return context_.move.retains_old; }
  // Connects the groups of the new plan in advance. Called from another thread.
  CommOutcome<void> prepare(const Deadline& deadline);

  // This rank's vote on whether to send state early (switching/precopy.h). Called after prepare().
  struct PrecopyVote {
    bool is_worth_it = false;
    std::size_t num_waves = 0;
  };
  PrecopyVote precopy_vote(const PlanPart& part) const;
  // Starts to send state on the agreed terms while the next step computes. The part's engine must exist until
  // end_precopy().
  void begin_precopy(const PrecopyTerms& terms, PlanPart& part);
  // Called before run(). Returns why pre-copy failed, or an empty string if it succeeded. After a failure,
  // run() must not be called.
  std::string end_precopy(PlanPart& part);
  // Performs the switch. Throws PeersLost and exceptions of the engine's constructor. After an exception, the
  // part matches neither plan, unless the old state is retained. In that case, `part` is either the old part
  // without its engine, or the new part with the old one in earlier(). A rank drops the old state only after
  // all ranks have the new state. Afterwards, the Comm is in the new epoch, and groups of earlier epochs can
  // be dropped.
  SwitchReport run(PlanPart& part);
  PlanPart& earlier() { return earlier_; }

 private:
  // Makes the engine counters equal on all ranks. Ranks without an engine receive them from ranks that have
  // one.
  void agree_on_counters(const PlanPart& part);
  void add_history(const PlanPart& part, std::vector<double>& numbers) const;
  Fp8History history_in(std::span<const double> numbers) const;
  void make_engine(PlanPart& part) const;
  SwitchReport summarize(const MoveReport& own) const;
  CommOutcome<void> measure_links(const Deadline& deadline);
  // add_update() appends the inputs of the last update to the counters, and read_update() reads them back.
  void add_update(const PlanPart& part, std::vector<double>& numbers) const;
  void read_update(std::span<const double> numbers);

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
  UpdateRecord update_;    // inputs of the last update, used if state was sent early
  double link_speed_ = 0;  // measured, in bytes per second; 0 if not measured
  Bytes needed_bytes_;     // memory that the new plan needs
};

// Called by all ranks after the same step. Decides whether state is sent early, and how much. `own` is null
// if this rank has refused the plan, in which case no state is sent early. Throws PeersLost.
PrecopyTerms agree_on_precopy(Comm& comm, const PlanSwitch* own, const PlanPart& part, Seconds timeout);

}  // namespace optimus
