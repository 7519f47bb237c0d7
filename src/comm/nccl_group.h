// NCCL collectives of tensors on GPUs. NCCL is called directly and not through c10d, so there is no watchdog
// that ends processes and no environment variable to set (docs/contribute/decisions/0010-nccl-directly.md).
// Point-to-point messages go through host memory (c10d_comm.h), because NCCL's messages have no tags.
//
// The operations of a group run on a separate stream. They run after all work that has already been submitted
// to the current stream, and concurrently with work that is submitted later. No thread blocks inside NCCL:
// communicators are non-blocking, and a watchdog thread of the rank polls operations in flight. An operation
// fails when its deadline passes, its run is abandoned, or a peer fails. The watchdog then aborts the
// communicator, which is never used again.
//
// Compiled where PyTorch has CUDA and NCCL's header is available (OPTIMUS_NCCL); elsewhere has_nccl() is
// false.
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
// Returns an identifier of a GPU that is unique across machines. Empty for CPUs and in builds without NCCL.
std::string gpu_id_of(at::Device device);
// Returns why NCCL cannot be used, for example "ranks 0 and 2 share a GPU". Empty if each member has its own
// GPU.
std::string why_nccl_is_unusable(const std::vector<int>& members, const std::vector<std::string>& gpu_ids);

class NcclGroup {
 public:
  virtual ~NcclGroup() = default;
  // Starts the operation without waiting for it. wait() makes the current stream wait and returns
  // immediately. It fails if the operation is known to have failed.
  virtual std::unique_ptr<Pending> start(CommOperation operation) = 0;
  // Records which operations have ended and which have failed. Thread-safe.
  virtual void poll() = 0;
  // Also aborts failed operations on the device, and waits until they have ended.
  virtual void abort_failed() = 0;
  virtual bool is_idle() = 0;
  // Sets this deadline for operations in flight that have none.
  virtual void set_deadline(const Deadline& deadline) = 0;
  // Returns the first failure of the group, if any.
  virtual CommOutcome<void> first_failure() = 0;
  virtual void close(const std::string& reason) = 0;
};

// All members must call this at about the same time with the same `key`, which can be used only once.
// `shared` must outlive the group.
Outcome<std::shared_ptr<NcclGroup>> connect_nccl_group(SharedRankState& shared, const std::string& key,
                                                       Group group, int epoch, at::Device device,
                                                       const Deadline& deadline);

// Watchdog thread that polls the NCCL groups of a rank until it is destroyed.
class NcclWatchdog {
 public:
  NcclWatchdog() = default;
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void add(std::shared_ptr<NcclGroup> group);
  void remove(const NcclGroup& group);
  // Waits until all started operations have ended on the device or have failed.
  CommOutcome<void> synchronize(const Deadline& deadline);

 private:
  void run();
  std::vector<std::shared_ptr<NcclGroup>> groups();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclGroup>> groups_;  // shared with the rank's Comm and its operations
  bool is_stopping_ = false;
  std::thread thread_;  // started with the first group
};

}  // namespace optimus
