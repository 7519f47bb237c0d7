// See process_group.h.
#include "comm/process_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "base/text.h"
#include "comm/c10d_link.h"

namespace optimus {
namespace {

Seconds seconds_since(Deadline::Clock::time_point begin_time) {
  return Seconds(std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count());
}

// Background threads need no deadline, because the thread that waits for an operation cancels it.
Deadline no_deadline() { return Deadline::after(Seconds(1e8), "background progress"); }

constexpr Seconds kNoteTimeout{0.5};
constexpr std::chrono::milliseconds kNotePollInterval{10};

std::string failure_note_key(int generation, int epoch, int rank) {
  return fmt::format("{}/{}/gave-up/{}", generation, epoch, rank);
}

// The note that a failing rank leaves for the other ranks. It contains the ranks that did not respond and the
// reason, for example "2 3;the deadline for step 4 passed".
std::string failure_note_text(const CommFailure& failure) {
  return fmt::format("{};{}", fmt::join(failure.missing, " "), failure.reason);
}

std::vector<int> missing_in(const std::string& note) {
  std::vector<int> result;
  for (const std::string& word : split(note.substr(0, note.find(';')), ' '))
    if (!word.empty() && word.size() < 8 && word.find_first_not_of("0123456789") == std::string::npos)
      result.push_back(std::stoi(word));
  return result;
}

}  // namespace

std::optional<std::string> SharedRankState::abandon_reason() const {
  const std::lock_guard lock(mutex_);
  return abandon_reason_;
}

void SharedRankState::abandon(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!abandon_reason_) abandon_reason_ = reason;
  }
  interrupter.interrupt_all();
}

void SharedRankState::start_generation(int new_generation, int new_rank) {
  generation = new_generation, rank = new_rank;
  const std::lock_guard lock(mutex_);
  abandon_reason_.reset();
}

ProcessOperation::ProcessOperation(std::shared_ptr<ProcessGroup> group,
                                   std::unique_ptr<MemberExchange> exchange, std::int64_t log_number)
    : group_(std::move(group)),
      exchange_(std::move(exchange)),
      log_number_(log_number),
      begin_time_(Deadline::Clock::now()) {}

void ProcessOperation::begin() {
  try {
    if (const std::optional<std::string> reason = stop_reason())
      throw LinkError{LinkError::Kind::stopped, -1, *reason};
    exchange_->begin();
  } catch (const LinkError& error) {
    end(tl::unexpected(group_->fail(*exchange_, error, seconds_since(begin_time_))));
  }
}

bool ProcessOperation::is_ended() {
  const std::lock_guard lock(mutex_);
  return state_ == State::ended;
}

bool ProcessOperation::queue() {
  const std::lock_guard lock(mutex_);
  return state_ == State::idle && (state_ = State::queued, true);
}

bool ProcessOperation::take() {
  const std::lock_guard lock(mutex_);
  return (state_ == State::idle || state_ == State::queued) && (state_ = State::running, true);
}

std::optional<std::string> ProcessOperation::stop_reason() {
  if (std::optional<std::string> reason = group_->shared().abandon_reason()) return reason;
  if (std::optional<std::string> reason = group_->break_reason()) return reason;
  const std::lock_guard lock(mutex_);
  return cancel_reason_;
}

void ProcessOperation::run(const Deadline& deadline) {
  try {
    exchange_->run(group_->shared().interrupter, {deadline, [this] { return stop_reason(); }});
    end({});
  } catch (const LinkError& error) {
    end(tl::unexpected(group_->fail(*exchange_, error, seconds_since(begin_time_))));
  }
}

void ProcessOperation::end(CommOutcome<void> outcome) {
  group_->shared().log.end(log_number_, outcome ? FlightState::done : FlightState::failed);
  {
    const std::lock_guard lock(mutex_);
    state_ = State::ended;
    end_time_ = Deadline::Clock::now();
    outcome_ = std::move(outcome);
  }
  changed_.notify_all();
}

CommOutcome<void> ProcessOperation::wait(const Deadline& deadline) {
  // The background thread runs multi-stage operations in order. A message need not wait for messages that
  // were polled earlier, so this thread can run it.
  if (!exchange_->has_stages() && take()) run(deadline);
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return state_ == State::ended; };
  if (!changed_.wait_until(lock, deadline.end(), has_ended)) {
    cancel_reason_ = deadline_text(deadline);
    lock.unlock();
    group_->shared().interrupter.interrupt_all();
    lock.lock();
    changed_.wait(lock, has_ended);  // the background thread checks its limits periodically
  }
  return *outcome_;
}

ProcessGroup::ProcessGroup(SharedRankState& shared, Group group, int epoch, std::unique_ptr<GroupLink> link)
    : shared_(shared),
      group_(std::move(group)),
      epoch_(epoch),
      text_(group_text(group_, epoch)),
      link_(std::move(link)) {}

ProcessGroup::~ProcessGroup() {
  for (const BackgroundThread& background : background_threads_)
    ensure(!background.thread.joinable(), "{} was not closed", text_);
}

std::shared_ptr<ProcessOperation> ProcessGroup::begin(std::unique_ptr<MemberExchange> exchange) {
  const CommOperation& comm_operation = exchange->operation();
  const std::int64_t log_number =
      shared_.log.post(name(comm_operation.kind), comm_operation.description, text_, comm_operation.bytes());
  const bool has_stages = exchange->has_stages();
  auto operation = std::make_shared<ProcessOperation>(shared_from_this(), std::move(exchange), log_number);
  operation->begin();
  if (has_stages) run_in_background(operation);
  return operation;
}

std::shared_ptr<ProcessOperation> ProcessGroup::start(CommOperation operation) {
  return begin(std::make_unique<MemberExchange>(std::move(operation), *link_, scratch_, num_started_++,
                                                shared_.sizes));
}

std::shared_ptr<ProcessOperation> ProcessGroup::start_message(CommOperation operation, int peer, int tag) {
  return begin(std::make_unique<MemberExchange>(std::move(operation), *link_, scratch_, peer, tag));
}

void ProcessGroup::run_in_background(std::shared_ptr<ProcessOperation> operation) {
  if (!operation->queue()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!is_stopping_) {
      BackgroundThread& background = background_threads_[operation->exchange().has_stages() ? 1 : 0];
      background.queue.push_back(std::move(operation));
      if (!background.thread.joinable())
        background.thread = std::thread([this, &background] { run(background); });
    }
  }
  if (operation == nullptr)
    changed_.notify_all();
  else if (operation->take())
    operation->run(no_deadline());  // the group is closed, so the operation fails at once
}

void ProcessGroup::run(BackgroundThread& background) {
  // Autograd dispatch is disabled, as on the compute thread, because views of tensors need no autograd
  // metadata here.
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  const Deadline deadline = no_deadline();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || !background.queue.empty(); });
    if (background.queue.empty()) return;
    const std::shared_ptr<ProcessOperation> operation = std::move(background.queue.front());
    background.queue.pop_front();
    lock.unlock();
    if (operation->take()) operation->run(deadline);
    lock.lock();
  }
}

std::optional<std::string> ProcessGroup::break_reason() {
  const std::lock_guard lock(mutex_);
  return break_reason_;
}

void ProcessGroup::mark_broken(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!break_reason_) break_reason_ = reason;
  }
  shared_.interrupter.interrupt_all();
}

void ProcessGroup::close(const std::string& reason) {
  mark_broken(reason);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (BackgroundThread& background : background_threads_)
    if (background.thread.joinable()) background.thread.join();
}

CommFailure ProcessGroup::fail(MemberExchange& exchange, const LinkError& error, Seconds waited) {
  CommFailure failure{exchange.operation().text(), text_, {}, waited, error.reason};
  // The failure is reported by the operation that failed first.
  if (error.kind == LinkError::Kind::stopped && break_reason()) return failure;
  mark_broken(fmt::format("{} had failed: {}", failure.operation, error.reason));
  // Write the note before closing the connections, so that a rank that sees a closed connection finds the
  // note.
  if (error.member_index >= 0)
    failure.missing = {group_.members[static_cast<std::size_t>(error.member_index)]};
  write_failure_note(failure);
  MemberExchange::Unfinished unfinished = exchange.give_up();
  if (error.kind == LinkError::Kind::closed) unfinished.closed.insert(error.member_index);
  name_missing(unfinished, failure);
  write_failure_note(failure);
  return failure;
}

void ProcessGroup::write_failure_note(const CommFailure& failure) {
  // If the store is unreachable, the note is lost, but the failure itself is still returned.
  (void)shared_.store->set(failure_note_key(shared_.generation, epoch_, shared_.rank),
                           failure_note_text(failure));
}

std::optional<std::string> ProcessGroup::failure_note_of(int rank) const {
  const auto note = shared_.store->find(failure_note_key(shared_.generation, epoch_, rank));
  return note ? *note : std::nullopt;
}

// A member may have disconnected or be silent only because another rank failed. The note of such a member
// names the ranks that did not respond to it.
void ProcessGroup::name_missing(const MemberExchange::Unfinished& unfinished, CommFailure& failure) const {
  const bool is_closed = !unfinished.closed.empty();
  std::set<int> missing, reported;
  for (const int member_index : is_closed ? unfinished.closed : unfinished.silent)
    missing.insert(group_.members[static_cast<std::size_t>(member_index)]);
  // Members that wait for the same operation fail at the same time as this rank and write notes. A single
  // silent member is assumed to be missing, unless it relays data from other members.
  const std::size_t max_missing = unfinished.is_relayed ? 0 : 1;
  const Deadline deadline =
      Deadline::after(is_closed || missing.size() <= max_missing ? Seconds(0) : kNoteTimeout, "notes");
  do {
    for (const int rank : std::vector<int>(missing.begin(), missing.end())) {
      const std::optional<std::string> note = failure_note_of(rank);
      if (!note) continue;
      const std::vector<int> missing_in_note = missing_in(*note);
      reported.insert(missing_in_note.begin(), missing_in_note.end());
      missing.erase(rank);
      if (is_closed && missing.empty())
        failure.reason = fmt::format("rank {} aborted: {}", rank, note->substr(note->find(';') + 1));
    }
    if (missing.size() > max_missing) std::this_thread::sleep_for(kNotePollInterval);
  } while (missing.size() > max_missing && !deadline.has_passed());
  if (missing.empty()) missing = reported;
  missing.erase(shared_.rank);
  failure.missing.assign(missing.begin(), missing.end());
}

}  // namespace optimus
