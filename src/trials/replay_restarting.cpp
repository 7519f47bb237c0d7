// Replays Oobleck and Varuna: every loss opens a rendezvous, after which training continues on all ready
// nodes. Varuna also saves checkpoints and rolls back to the latest checkpoint.
#include <algorithm>

#include "trials/published_job.h"
#include "trials/replay_systems.h"

namespace optimus {
namespace {

class RestartingJob : public PublishedJob {
 public:
  using PublishedJob::PublishedJob;

 protected:
  void got_ready(int node) override {
    if (state_ == State::halted) {
      roster_ = ready_nodes();
      open_muster(muster_length(), State::in_muster);
    } else if (is_in_muster()) {
      roster_.push_back(node);
    }
  }

  void removed(int /*node*/, bool /*was_ready*/) override {
    if (!is_in_muster()) roster_ = ready_nodes();
    lost();
    open_muster(muster_length(), state_ == State::running || state_ == State::in_step_muster
                                     ? State::in_step_muster
                                     : State::in_muster);
  }

  bool counts(const ReplayEvent& muster_end) const override {
    return is_published() || muster_end.number == muster_;
  }

  void started(std::int64_t nodes) override {
    nodes_ = nodes;
    length_ = one_.step_ticks(static_cast<int>(nodes));
    if (length_ > 0) begin_step(now_, length_);
  }

  void step_ended(std::int64_t /*began*/) override {
    ++num_steps_;
    begin_step(now_, length_);
  }

  double steps_that_count() const override { return static_cast<double>(num_steps_); }
  virtual void lost() {}
  virtual std::int64_t muster_length() const { return one_.ticks(one_.halts.reconfigure_seconds); }

  std::int64_t nodes_ = 0, length_ = 0, num_steps_ = 0;
};

// Saves a checkpoint every checkpoint_every steps, and after the first step that follows a loss.
class SavingJob final : public RestartingJob {
 public:
  using RestartingJob::RestartingJob;

 private:
  std::int64_t saving() const { return one_.ticks(one_.halts.checkpoint_seconds); }

  std::int64_t muster_length() const override {
    const Halts& halts = one_.halts;
    double seconds = halts.reconfigure_seconds;
    if (nodes_ > 0 && !halts.reconfigure_by_nodes.empty()) {
      const int nodes = std::clamp(static_cast<int>(nodes_), one_.throughput.fewest, one_.throughput.most());
      seconds = halts.reconfigure_by_nodes[static_cast<std::size_t>(nodes - one_.throughput.fewest)];
    }
    return one_.ticks(seconds) - saving();
  }

  // Rolls back to the latest complete checkpoint; later steps are lost.
  void lost() override {
    has_lost_ = true;
    const auto kept = static_cast<std::size_t>(std::count_if(
        ends_.begin(), ends_.end(), [&](std::int64_t end) { return saved_at_ >= 0 && end <= saved_at_; }));
    for (std::size_t i = kept; i < amounts_.size(); ++i) revoke(i);
  }

  void revoke(std::size_t step) {
    if (amounts_[step] == 0) return;
    amounts_[step] = 0;
    ++outcome_.steps_lost;
    if (step < lengths_.size())
      outcome_.useful_seconds -= static_cast<double>(lengths_[step]) / one_.ticks_per_second;
  }

  void step_ended(std::int64_t /*began*/) override {
    ends_.push_back(now_), amounts_.push_back(1), lengths_.push_back(length_);
    ++num_steps_;
    const bool saves = num_steps_ % one_.halts.checkpoint_every == 0 || has_lost_;
    if (saves) save();
    begin_step(now_ + (saves ? saving() : 0), length_);
  }

  void save() {
    has_lost_ = false;
    if (!heap_.has_removal_before({.time = now_ + 2 * saving(), .kind = EventKind::checkpoint})) {
      saved_at_ = now_ + saving();
      return;
    }
    const auto every = static_cast<std::size_t>(one_.halts.checkpoint_every);
    // In the published code the list grows if it has fewer steps than are revoked; its entries then refer to
    // other steps.
    const std::size_t back = is_published() ? every : std::min(every, amounts_.size());
    if (amounts_.size() < back) amounts_.resize(back);
    for (std::size_t i = amounts_.size() - back; i < amounts_.size(); ++i) revoke(i);
    num_steps_ = std::max<std::int64_t>(0, num_steps_ - one_.halts.checkpoint_every);
  }

  double steps_that_count() const override {
    double steps = 0;
    for (std::size_t i = 0; i < ends_.size(); ++i) steps += amounts_[i];
    return steps;
  }

  std::vector<std::int64_t> ends_, lengths_;  // [step]
  std::vector<int> amounts_;                  // [step]: 1, or 0 if revoked
  std::int64_t saved_at_ = -1;
  bool has_lost_ = false;
};

}  // namespace

ReplayOutcome replay_oobleck(const ReplayCase& one) { return RestartingJob(one).run(); }
ReplayOutcome replay_varuna(const ReplayCase& one) { return SavingJob(one).run(); }

}  // namespace optimus
