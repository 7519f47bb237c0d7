// A group of processes as one rank sees it: its link, its operations under way, and the threads that drive them: one those of
// several stages, one messages that somebody looks at before waiting for them. Broken by the first failure and never used again.
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

// What the operations of one rank share. Outlives its groups.
struct RankShared {
  int generation = 0, rank = 0;
  StoreClient* store = nullptr;
  ExchangeSizes sizes;
  Interrupter interrupter;
  FlightLog log;

  explicit RankShared(int own_rank) : rank(own_rank), log(own_rank) {}
  std::optional<std::string> abandoned() const;
  void abandon(const std::string& reason);
  // Of another membership; no group is left.
  void renew(int new_generation, int new_rank);

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> abandoned_;
};

class ProcessGroup;

// One operation under way. Run by whoever waits for it, or by a thread of the group; by one of them, once.
class ProcessOperation {
 public:
  ProcessOperation(std::shared_ptr<ProcessGroup> group, std::unique_ptr<MemberExchange> exchange,
                   std::int64_t flight);

  void begin();
  bool is_ended();
  // It is in a queue from here on; false when it was, or somebody runs it.
  bool queue();
  // Takes it to run it; false when somebody has it.
  bool take();
  void run(const Deadline& deadline);
  CommOutcome<void> wait(const Deadline& deadline);
  const MemberExchange& exchange() const { return *exchange_; }
  // Of one that has been waited for.
  Deadline::Clock::time_point ended() const { return ended_; }
  Seconds took() const { return Seconds(std::chrono::duration<double>(ended_ - began_).count()); }

 private:
  enum class State { idle, queued, running, ended };
  std::optional<std::string> stop_reason();
  void end(CommOutcome<void> outcome);

  const std::shared_ptr<ProcessGroup>
      group_;  // shared: an operation may be under way when its group is dropped
  const std::unique_ptr<MemberExchange> exchange_;
  const std::int64_t flight_;
  const Deadline::Clock::time_point began_;
  Deadline::Clock::time_point ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  std::optional<std::string> cancelled_;
  std::optional<CommOutcome<void>> outcome_;
};

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  ProcessGroup(RankShared& shared, Group group, int epoch, std::unique_ptr<Wire> link);
  ~ProcessGroup();

  const std::string& text() const { return text_; }
  RankShared& shared() { return shared_; }
  Wire& link() { return *link_; }

  std::shared_ptr<ProcessOperation> start(CommOperation operation);
  std::shared_ptr<ProcessOperation> start_message(CommOperation operation, int peer, int tag);
  // A thread of the group runs it when it comes to it.
  void drive(std::shared_ptr<ProcessOperation> operation);
  // Ends all that is under way, and the threads.
  void close(const std::string& reason);

  std::optional<std::string> broken();
  // After a failure inside the group: breaks it, tells the others through the store, finds out who is missing.
  CommFailure fail(MemberExchange& exchange, const LinkError& error, Seconds waited);

 private:
  struct Driver {
    std::deque<std::shared_ptr<ProcessOperation>> queue;
    std::thread thread;  // from the first operation on
  };
  void run(Driver& driver);
  void break_off(const std::string& reason);
  void leave_note(const CommFailure& failure);
  std::optional<std::string> note_of(int rank) const;
  void name_missing(const MemberExchange::Unfinished& left, CommFailure& failure) const;
  std::shared_ptr<ProcessOperation> begin(std::unique_ptr<MemberExchange> exchange);

  RankShared& shared_;
  const Group group_;
  const int epoch_;
  const std::string text_;
  const std::unique_ptr<Wire> link_;
  Scratch scratch_;
  std::int64_t num_started_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> broken_;
  bool is_over_ = false;
  // Apart, because a message may be one that comes only when the other side has our part of a collective.
  std::array<Driver, 2> drivers_;  // of messages; of operations of several stages
};

}  // namespace optimus
