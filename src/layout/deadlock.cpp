// Simulates the execution of a plan for verify: matches sends and receives, and checks that every rank
// terminates.
#include <deque>
#include <unordered_map>

#include "layout/verify.h"

namespace optimus {
namespace {

class Execution {
 public:
  explicit Execution(std::span<const std::vector<PostedOperation>> programs)
      : programs_(programs), next_operation_(programs.size()), num_unmatched_(programs.size()) {}

  Outcome<void> run() {
    for (std::size_t rank = 0; rank < programs_.size(); ++rank) post_from(static_cast<int>(rank));
    while (!ready_ranks_.empty() && mismatch_.empty()) {
      const int rank = ready_ranks_.front();
      ready_ranks_.pop_front();
      post_from(rank);
    }
    if (!mismatch_.empty()) return failure("{}", mismatch_);
    for (std::size_t rank = 0; rank < programs_.size(); ++rank)
      if (num_unmatched_[rank] > 0) return deadlock_failure(static_cast<int>(rank));
    return {};
  }

 private:
  // Operations from one rank to another that only one side has posted so far.
  struct Channel {
    bool holds_sends = false;
    std::size_t num_matched = 0;  // number of matched operations at the front of `posted_ids`
    std::vector<std::uint64_t> posted_ids;
  };

  // Posts the rank's next wave. Continues with the following waves as long as all posted operations are
  // matched.
  void post_from(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto& program = programs_[r];
    while (num_unmatched_[r] == 0 && next_operation_[r] < program.size() && mismatch_.empty()) {
      const int wave = program[next_operation_[r]].wave;
      for (; next_operation_[r] < program.size() && program[next_operation_[r]].wave == wave;
           ++next_operation_[r]) {
        ++num_unmatched_[r];
        post(rank, program[next_operation_[r]]);
      }
    }
  }

  void post(int rank, const PostedOperation& operation) {
    const int sender = operation.is_send ? rank : operation.peer;
    const int receiver = operation.is_send ? operation.peer : rank;
    const auto key = static_cast<std::uint64_t>(sender) << 32 | static_cast<std::uint64_t>(receiver);
    Channel& channel = channels_[key];
    if (channel.posted_ids.empty() || channel.holds_sends == operation.is_send) {
      channel.holds_sends = operation.is_send;
      channel.posted_ids.push_back(operation.data_id);
      return;
    }
    if (channel.posted_ids[channel.num_matched] != operation.data_id && mismatch_.empty())
      mismatch_ =
          fmt::format("in wave {}, rank {} sends rank {} data that differs from what the receiver expects",
                      operation.wave, sender, receiver);
    if (++channel.num_matched == channel.posted_ids.size())
      channel.posted_ids.clear(), channel.num_matched = 0;
    --num_unmatched_[static_cast<std::size_t>(rank)];
    const auto peer = static_cast<std::size_t>(operation.peer);
    if (--num_unmatched_[peer] == 0 && operation.peer != rank) ready_ranks_.push_back(operation.peer);
  }

  Outcome<void> deadlock_failure(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return failure("rank {} waits forever in wave {} for {} of its sends and receives", rank,
                   programs_[r][next_operation_[r] - 1].wave, num_unmatched_[r]);
  }

  std::span<const std::vector<PostedOperation>> programs_;
  std::vector<std::size_t> next_operation_;
  std::vector<int> num_unmatched_;
  std::deque<int> ready_ranks_;
  std::unordered_map<std::uint64_t, Channel> channels_;
  std::string mismatch_;
};

}  // namespace

Outcome<void> check_no_deadlock(std::span<const std::vector<PostedOperation>> programs) {
  for (const auto& program : programs)
    for (const PostedOperation& operation : program)
      if (operation.peer < 0 || operation.peer >= static_cast<int>(programs.size()))
        return failure("an operation of wave {} refers to rank {}, but there are {} ranks", operation.wave,
                       operation.peer, programs.size());
  return Execution(programs).run();
}

}  // namespace optimus
