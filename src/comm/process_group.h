// A group of processes from the point of view of one rank: its link, its operations in flight, and two
// background threads. One thread runs multi-stage operations. The other one advances point-to-point messages
// whose completion the caller polls before it calls wait(). The first failure breaks the group permanently.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/c10d_link.h"
#include "comm/exchange.h"

namespace optimus {

// State shared by all operations of one rank. Must outlive all groups of the rank.
struct SharedRankState {
  int generation = 0, rank = 0;
  StoreClient* store = nullptr;
  AlgorithmThresholds sizes;
  Interrupter interrupter;
  FlightLog log;

  explicit SharedRankState(int own_rank) : rank(own_rank), log(own_rank) {}
  std::optional<std::string> abandon_reason() const;
  void abandon(const std::string& reason);
  // Prepares for another membership. No group may exist when this is called.
  void start_generation(int new_generation, int new_rank);

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> abandon_reason_;
};

class ProcessGroup;

// One operation in flight. It is executed exactly once, either by the thread that waits for it or by a
// background thread of the group.
class ProcessOperation {
 public:
  ProcessOperation(std::shared_ptr<ProcessGroup> group, std::unique_ptr<MemberExchange> exchange,
                   std::int64_t log_number);

  void begin();
  bool is_ended();
  // Marks the operation as queued. Returns false if it is already queued, running or ended.
  bool queue();
  // Claims the operation for execution. Returns false if another thread has claimed it.
  bool take();
  void run(const Deadline& deadline);
  CommOutcome<void> wait(const Deadline& deadline);
  const MemberExchange& exchange() const { return *exchange_; }
  // Valid after wait().
  Deadline::Clock::time_point end_time() const { return end_time_; }
  Seconds duration() const { return Seconds(std::chrono::duration<double>(end_time_ - begin_time_).count()); }

 private:
  enum class State { idle, queued, running, ended };
  std::optional<std::string> stop_reason();
  void end(CommOutcome<void> outcome);

  // Shared, because an operation may still be in flight when its group is dropped.
  const std::shared_ptr<ProcessGroup> group_;
  const std::unique_ptr<MemberExchange> exchange_;
  const std::int64_t log_number_;
  const Deadline::Clock::time_point begin_time_;
  Deadline::Clock::time_point end_time_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  std::optional<std::string> cancel_reason_;
  std::optional<CommOutcome<void>> outcome_;
};

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  ProcessGroup(SharedRankState& shared, Group group, int epoch, std::unique_ptr<GroupLink> link);
  ~ProcessGroup();

  const std::string& text() const { return text_; }
  SharedRankState& shared() { return shared_; }
  GroupLink& link() { return *link_; }

  std::shared_ptr<ProcessOperation> start(CommOperation operation);
  std::shared_ptr<ProcessOperation> start_message(CommOperation operation, int peer, int tag);
  // Queues the operation for a background thread of the group.
  void run_in_background(std::shared_ptr<ProcessOperation> operation);
  // Ends all operations in flight and stops the background threads.
  void close(const std::string& reason);

  std::optional<std::string> break_reason();
  // Called after a failure inside the group. Breaks the group, informs the other members through the store,
  // and finds out which members are missing.
  CommFailure fail(MemberExchange& exchange, const LinkError& error, Seconds waited);

 private:
  struct BackgroundThread {
    std::deque<std::shared_ptr<ProcessOperation>> queue;
    std::thread thread;  // started with the first operation
  };
  void run(BackgroundThread& background);
  void mark_broken(const std::string& reason);
  void write_failure_note(const CommFailure& failure);
  std::optional<std::string> failure_note_of(int rank) const;
  void name_missing(const MemberExchange::Unfinished& unfinished, CommFailure& failure) const;
  std::shared_ptr<ProcessOperation> begin(std::unique_ptr<MemberExchange> exchange);

  SharedRankState& shared_;
  const Group group_;
  const int epoch_;
  const std::string text_;
  const std::unique_ptr<GroupLink> link_;
  ScratchMemory scratch_;
  std::int64_t num_started_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> break_reason_;
  bool is_stopping_ = false;
  // Messages and collectives have separate threads, because a message may arrive only after its sender has
  // received this rank's part of a collective.
  std::array<BackgroundThread, 2> background_threads_;  // [0]: messages, [1]: multi-stage operations
};

}  // namespace optimus
