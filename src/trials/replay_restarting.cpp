// Replays Oobleck and Varuna. Every loss opens a rendezvous, after which training continues on all ready
// nodes. Varuna also saves checkpoints and rolls back to the latest one.
#include <algorithm>

#include "trials/published_job.h"
#include "trials/replay_systems.h"

namespace optimus {
namespace {

class RestartingJob : public PublishedJob {
 public:
  using PublishedJob::PublishedJob;

 protected:
  void on_node_ready(int node) override {
    if (state_ == State::halted) {
      registered_nodes_ = ready_nodes();
      open_rendezvous(rendezvous_length(), State::in_rendezvous);
    } else if (is_in_rendezvous()) {
      registered_nodes_.push_back(node);
    }
  }

  void on_node_removed(int /*node*/, bool /*was_ready*/) override {
    if (!is_in_rendezvous()) registered_nodes_ = ready_nodes();
    on_loss();
    open_rendezvous(rendezvous_length(), state_ == State::running || state_ == State::in_overlapped_rendezvous
                                             ? State::in_overlapped_rendezvous
                                             : State::in_rendezvous);
  }

  bool is_counted(const ReplayEvent& rendezvous_end) const override {
    return is_published() || rendezvous_end.number == rendezvous_;
  }

  void on_started(std::int64_t nodes) override {
    nodes_ = nodes;
    step_ticks_ = replay_case_.step_ticks(static_cast<int>(nodes));
    if (step_ticks_ > 0) begin_step(now_, step_ticks_);
  }

  void on_step_ended(std::int64_t /*began*/) override {
    ++num_steps_;
    begin_step(now_, step_ticks_);
  }

  double num_counted_steps() const override { return static_cast<double>(num_steps_); }
  virtual void on_loss() {}
  virtual std::int64_t rendezvous_length() const {
    return replay_case_.ticks(replay_case_.reconfiguration.reconfigure_seconds);
  }

  std::int64_t nodes_ = 0, step_ticks_ = 0, num_steps_ = 0;
};

// Saves a checkpoint every `checkpoint_every` steps, and after the first step that follows a loss.
class CheckpointingJob final : public RestartingJob {
 public:
  using RestartingJob::RestartingJob;

 private:
  std::int64_t checkpoint_ticks() const {
    return replay_case_.ticks(replay_case_.reconfiguration.checkpoint_seconds);
  }

  std::int64_t rendezvous_length() const override {
    const ReconfigurationCosts& reconfiguration = replay_case_.reconfiguration;
    double seconds = reconfiguration.reconfigure_seconds;
    if (nodes_ > 0 && !reconfiguration.reconfigure_by_nodes.empty()) {
      const int nodes = std::clamp(static_cast<int>(nodes_), replay_case_.throughput.min_nodes,
                                   replay_case_.throughput.max_nodes());
      seconds =
          reconfiguration
              .reconfigure_by_nodes[static_cast<std::size_t>(nodes - replay_case_.throughput.min_nodes)];
    }
    return replay_case_.ticks(seconds) - checkpoint_ticks();
  }

  // Rolls back to the latest complete checkpoint. Later steps are lost.
  void on_loss() override {
    has_lost_ = true;
    const auto num_saved =
        static_cast<std::size_t>(std::count_if(step_ends_.begin(), step_ends_.end(), [&](std::int64_t end) {
          return last_save_time_ >= 0 && end <= last_save_time_;
        }));
    for (std::size_t i = num_saved; i < is_counted_.size(); ++i) revoke(i);
  }

  void revoke(std::size_t step) {
    if (is_counted_[step] == 0) return;
    is_counted_[step] = 0;
    ++outcome_.steps_lost;
    if (step < step_lengths_.size())
      outcome_.useful_seconds -= static_cast<double>(step_lengths_[step]) / replay_case_.ticks_per_second;
  }

  void on_step_ended(std::int64_t /*began*/) override {
    step_ends_.push_back(now_), is_counted_.push_back(1), step_lengths_.push_back(step_ticks_);
    ++num_steps_;
    const bool saves_checkpoint =
        num_steps_ % replay_case_.reconfiguration.checkpoint_every == 0 || has_lost_;
    if (saves_checkpoint) save();
    begin_step(now_ + (saves_checkpoint ? checkpoint_ticks() : 0), step_ticks_);
  }

  void save() {
    has_lost_ = false;
    if (!heap_.has_removal_before({.time = now_ + 2 * checkpoint_ticks(), .kind = EventKind::checkpoint})) {
      last_save_time_ = now_ + checkpoint_ticks();
      return;
    }
    const auto interval = static_cast<std::size_t>(replay_case_.reconfiguration.checkpoint_every);
    // If more steps are revoked than the list contains, the published code extends the list. From then on,
    // its entries refer to the wrong steps.
    const std::size_t num_revoked = is_published() ? interval : std::min(interval, is_counted_.size());
    if (is_counted_.size() < num_revoked) is_counted_.resize(num_revoked);
    for (std::size_t i = is_counted_.size() - num_revoked; i < is_counted_.size(); ++i) revoke(i);
    num_steps_ = std::max<std::int64_t>(0, num_steps_ - replay_case_.reconfiguration.checkpoint_every);
  }

  double num_counted_steps() const override {
    double steps = 0;
    for (std::size_t i = 0; i < step_ends_.size(); ++i) steps += is_counted_[i];
    return steps;
  }

  std::vector<std::int64_t> step_ends_, step_lengths_;  // [step]
  std::vector<int> is_counted_;                         // [step]: 1, or 0 if revoked
  std::int64_t last_save_time_ = -1;
  bool has_lost_ = false;
};

}  // namespace

ReplayOutcome replay_oobleck(const ReplayCase& replay_case) { return RestartingJob(replay_case).run(); }
ReplayOutcome replay_varuna(const ReplayCase& replay_case) { return CheckpointingJob(replay_case).run(); }

}  // namespace optimus
