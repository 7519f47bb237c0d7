// Collectives of tensors on GPUs, straight between the cards by NCCL, which is called directly and not through c10d: so there is
// no watchdog that ends processes, and no environment to set (docs/decisions/0010-nccl-directly.md). Not messages: NCCL's have no
// tags, so those go through the processor's memory (c10d_comm.h).
//
// A group's operations run on a stream of its own, behind what the current stream was given so far, and beside what it is given
// then. Nobody blocks inside NCCL: communicators are told not to, and a thread of the rank looks after what is under way. An
// operation whose deadline has passed, whose run is abandoned or whose other side is gone fails, and that thread aborts the
// communicator, which is never used again.
//
// Compiled where PyTorch has CUDA and NCCL's header is beside it (OPTIMUS_NCCL); elsewhere has_nccl() is false.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/process_group.h"

namespace optimus {

bool has_nccl();
// What a card is known by on all machines; empty for processors and without NCCL.
std::string card_of(at::Device device);
// "ranks 0 and 2 share a card"; empty when each member has one of its own.
std::string why_not_by_cards(const std::vector<int>& members, const std::vector<std::string>& cards);

class CardGroup {
 public:
  virtual ~CardGroup() = default;
  // Started, not waited for: wait() makes the current stream wait and returns; it fails when the operation is known to have failed.
  virtual std::unique_ptr<Pending> start(CommOperation operation) = 0;
  // Takes note of what has ended and of what has failed. Any thread.
  virtual void look() = 0;
  // Ends what has failed on the device too, and waits for it.
  virtual void bury() = 0;
  virtual bool is_idle() = 0;
  // Those under way get the deadline where they have none.
  virtual void limit(const Deadline& deadline) = 0;
  // The first failure of the group, if any.
  virtual CommOutcome<void> state() = 0;
  virtual void close(const std::string& reason) = 0;
};

// key: the same on all members, used once. All must be about to call this. shared must outlive the group.
Outcome<std::shared_ptr<CardGroup>> connect_cards(RankShared& shared, const std::string& key, Group group,
                                                  int epoch, at::Device device, const Deadline& deadline);

// Looks after the groups of a rank until it is destroyed.
class CardWatch {
 public:
  CardWatch() = default;
  ~CardWatch();
  CardWatch(const CardWatch&) = delete;
  CardWatch& operator=(const CardWatch&) = delete;

  void add(std::shared_ptr<CardGroup> group);
  void remove(const CardGroup& group);
  // Until all that was started has ended on the device, or has failed.
  CommOutcome<void> settle(const Deadline& deadline);

 private:
  void run();
  std::vector<std::shared_ptr<CardGroup>> groups();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<CardGroup>> groups_;  // shared: with the rank's Comm and operations
  bool is_over_ = false;
  std::thread thread_;  // from the first group on
};

}  // namespace optimus
