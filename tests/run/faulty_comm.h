// A Comm with one faulty operation: the rank dies before or after it, or the operation fails.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm.h"

namespace optimus::test {

// The fault of one operation of a rank.
struct Fault {
  // dies_connecting: counts connects after the first membership change.
  enum class Kind { none, dies_before, dies_after, fails, dies_connecting } kind = Kind::none;
  int operation = -1;
  std::string_view from{};  // counts from the first operation of this name; empty: counts all
};

struct Killed {};  // not a std::exception, so that no handler catches it, as with a signal

class FaultyPending final : public Pending {
 public:
  FaultyPending(std::unique_ptr<Pending> inner, Fault::Kind kind, at::Tensor result)
      : inner_(std::move(inner)), kind_(kind), result_(std::move(result)) {}
  bool is_done() override { return inner_->is_done(); }
  CommOutcome<void> wait(const Deadline& deadline) override {
    CommOutcome<void> done = inner_->wait(deadline);
    if (kind_ == Fault::Kind::dies_after) throw Killed{};
    if (kind_ != Fault::Kind::fails) return done;
    result_.fill_(std::nan(""));  // only half of it was received
    return tl::unexpected(CommFailure{"an operation", "a group", {}, Seconds(0), "the test wants it"});
  }

 private:
  const std::unique_ptr<Pending> inner_;
  const Fault::Kind kind_;
  at::Tensor result_;
};

class FaultyComm final : public Comm {
 public:
  FaultyComm(std::unique_ptr<Comm> inner, Fault fault)
      : inner_(std::move(inner)), rank_(inner_->rank()), size_(inner_->size()), fault_(fault) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void change_membership(const Membership& membership) override {
    inner_->change_membership(membership);
    rank_ = inner_->rank(), size_ = inner_->size(), has_regrouped_ = true;
  }
  void shrink(int size) override {
    inner_->shrink(size);
    size_ = size;
  }
  CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    if (fault_.kind == Fault::Kind::dies_connecting && has_regrouped_ && num_connects_++ == fault_.operation)
      throw Killed{};
    return inner_->connect(epoch, groups, deadline);
  }
  CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    return inner_->prepare(epoch, groups, deadline);
  }
  // If the rank does not take part in membership changes, the other ranks see that it has left.
  void drop(int epoch) override {
    if (on_drop) on_drop(epoch);
    if (keeps_connection)
      inner_->drop(epoch);
    else
      inner_.reset();
  }
  void abandon(const std::string& reason) override { inner_->abandon(reason); }
  void decline(int epoch, const std::string& reason) override { inner_->decline(epoch, reason); }
  std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, ReduceOp kind,
                                      std::string_view what) override {
    return with_fault(
        tensor, [&] { return inner_->all_reduce(group, tensor, kind, what); }, what);
  }
  std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                      std::string_view what) override {
    return with_fault(
        to, [&] { return inner_->all_gather(group, from, to, what); }, what);
  }
  std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                          std::string_view what) override {
    return with_fault(
        to, [&] { return inner_->reduce_scatter(group, from, to, what); }, what);
  }
  std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                     std::string_view what) override {
    return with_fault(
        tensor, [&] { return inner_->broadcast(group, tensor, root, what); }, what);
  }
  std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return with_fault(
        {}, [&] { return inner_->send(peer, tensor, tag, what); }, what);
  }
  std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return with_fault(
        tensor, [&] { return inner_->receive(peer, tensor, tag, what); }, what);
  }
  // Runs on its own thread, so it is not counted.
  std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                      std::string_view what) override {
    return inner_->send_ahead(epoch, peer, tensor, tag, what);
  }
  std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                         std::string_view what) override {
    return inner_->receive_ahead(epoch, peer, tensor, tag, what);
  }
  const FlightLog& flight_log() const override { return inner_->flight_log(); }

  bool keeps_connection = false;
  std::function<void(int epoch)> on_drop;  // called on any thread
  int num_operations = 0;
  std::vector<int> gates;  // operation numbers of the step gates

 private:
  template <typename Start>
  std::unique_ptr<Pending> with_fault(const at::Tensor& result, Start start, std::string_view what) {
    if (what == "loss and gradient norm") gates.push_back(num_operations);
    is_counting_ = is_counting_ || fault_.from.empty() || what == fault_.from;
    if (!is_counting_) return start();
    const bool is_it = num_operations++ == fault_.operation;
    if (is_it && fault_.kind == Fault::Kind::dies_before) throw Killed{};
    return std::make_unique<FaultyPending>(start(), is_it ? fault_.kind : Fault::Kind::none, result);
  }

  std::unique_ptr<Comm> inner_;
  int rank_, size_;
  const Fault fault_;
  bool has_regrouped_ = false;
  int num_connects_ = 0;  // since the first membership change
  bool is_counting_ = false;
};

}  // namespace optimus::test
