// Implements nccl_group.h with one NCCL communicator per group. In builds without NCCL, the functions report
// that NCCL is not available.
#include <fmt/format.h>

#include "base/error.h"
#include "comm/nccl_group.h"

#ifdef OPTIMUS_NCCL
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstring>
#include <list>
#include <optional>
#include <utility>
#endif

namespace optimus {

#ifdef OPTIMUS_NCCL
namespace {

constexpr std::chrono::milliseconds kPollInterval{1};
// Timeout for NCCL to accept an operation. It is long because other members may still be connecting when the
// first operation starts.
constexpr Seconds kStartTimeout{600};
constexpr Seconds kNcclNoteTimeout{0.5};  // for the failure notes of other members

double seconds_since_begin(Deadline::Clock::time_point begin_time) {
  return std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
}

ncclDataType_t nccl_type(at::ScalarType type) {
  constexpr std::pair<at::ScalarType, ncclDataType_t> kTypes[] = {
      {at::kFloat, ncclFloat32}, {at::kDouble, ncclFloat64}, {at::kBFloat16, ncclBfloat16},
      {at::kHalf, ncclFloat16},  {at::kInt, ncclInt32},      {at::kLong, ncclInt64},
      {at::kByte, ncclUint8},    {at::kChar, ncclInt8}};
  for (const auto& [ours, theirs] : kTypes)
    if (ours == type) return theirs;
  ensure(false, "NCCL does not support tensors of type {}", c10::toString(type));
  return ncclUint8;
}

struct NcclOperation {
  CommOperation operation;      // keeps the tensors alive
  std::int64_t log_number = 0;  // in the flight log
  Deadline::Clock::time_point begin_time;
  // The default flags enable timing, so that elapsed times can be measured.
  c10::cuda::CUDAEvent begin_event{cudaEventDefault}, end_event{cudaEventDefault};
  std::optional<Deadline> deadline;
  std::optional<CommFailure> failure;
  bool is_ended = false;
};

// State of a non-blocking communicator: ready, busy, or failed.
class CommunicatorStatus {
 public:
  explicit CommunicatorStatus(ncclComm_t comm) { status_ = ncclCommGetAsyncError(comm, &result_); }
  bool is_in_progress() const { return status_ == ncclSuccess && result_ == ncclInProgress; }
  bool is_ready() const { return status_ == ncclSuccess && result_ == ncclSuccess; }
  std::string text() const {
    return fmt::format("NCCL error: {}", ncclGetErrorString(status_ != ncclSuccess ? status_ : result_));
  }

 private:
  ncclResult_t status_, result_ = ncclSuccess;  // result of the query; state of the communicator
};

class NcclCommunicator final : public NcclGroup, public std::enable_shared_from_this<NcclCommunicator> {
 public:
  NcclCommunicator(SharedRankState& shared, Group group, int epoch, at::Device device)
      : shared_(shared),
        group_(std::move(group)),
        epoch_(epoch),
        text_(group_text(group_, epoch)),
        device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {}
  ~NcclCommunicator() override { close("the group is no longer needed"); }

  Outcome<void> connect(const ncclUniqueId& id, const Deadline& deadline) {
    const c10::cuda::CUDAGuard guard(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t init_result = ncclCommInitRankConfig(
        &comm_, static_cast<int>(group_.members.size()), id, member_index_of(shared_.rank, group_), &config);
    if (init_result != ncclSuccess && init_result != ncclInProgress)
      return failure("NCCL error: {}", ncclGetErrorString(init_result));
    const std::string problem = wait_until_ready(deadline);
    if (problem.empty()) return {};
    close(problem);
    return failure("{}", problem);
  }

  std::unique_ptr<Pending> start(CommOperation operation) override;
  CommOutcome<void> wait(NcclOperation& operation, const Deadline& deadline);
  bool is_done(NcclOperation& operation);
  std::optional<Seconds> duration(const NcclOperation& operation);

  void poll() override {
    const std::lock_guard lock(mutex_);
    poll_locked();
  }
  bool is_idle() override {
    const std::lock_guard lock(mutex_);
    return in_flight_.empty();
  }
  void set_deadline(const Deadline& deadline) override {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : in_flight_)
      if (!operation->deadline) operation->deadline = deadline;
  }
  CommOutcome<void> first_failure() override {
    const std::lock_guard lock(mutex_);
    if (first_failure_) return tl::unexpected(*first_failure_);
    return {};
  }
  void close(const std::string& reason) override {
    {
      const std::lock_guard lock(mutex_);
      poll_locked();
      if (!in_flight_.empty()) fail(reason);
      if (break_reason_.empty()) break_reason_ = reason;
    }
    abort_failed();
  }
  // Called without the lock, because it waits for work that the device has already started. Other threads
  // must be able to see the failure meanwhile.
  void abort_failed() override {
    ncclComm_t failed_comm = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (!break_reason_.empty()) failed_comm = std::exchange(comm_, nullptr);
    }
    if (failed_comm != nullptr) ncclCommAbort(failed_comm);
  }

 private:
  std::string wait_until_ready(const Deadline& deadline) const;
  void enqueue(NcclOperation& operation);
  void poll_locked();
  void fail(const std::string& reason);
  std::vector<int> silent_members(const std::string& reason) const;

  SharedRankState& shared_;
  const Group group_;
  const int epoch_;
  const std::string text_;
  const at::Device device_;
  const c10::cuda::CUDAStream stream_;
  std::mutex mutex_;  // protects all members below, and calls to the communicator
  ncclComm_t comm_ = nullptr;
  std::string break_reason_;  // why the communicator can no longer be used; empty while it is usable
  std::optional<CommFailure> first_failure_;
  // Shared with the waiting thread, which may call wait() after the operation has ended.
  std::list<std::shared_ptr<NcclOperation>> in_flight_;
};

class NcclPending final : public Pending {
 public:
  NcclPending(std::shared_ptr<NcclCommunicator> group, std::shared_ptr<NcclOperation> operation)
      : group_(std::move(group)), operation_(std::move(operation)) {}
  bool is_done() override { return group_->is_done(*operation_); }
  CommOutcome<void> wait(const Deadline& deadline) override { return group_->wait(*operation_, deadline); }
  std::optional<Seconds> duration() const override { return group_->duration(*operation_); }

 private:
  const std::shared_ptr<NcclCommunicator> group_;
  const std::shared_ptr<NcclOperation> operation_;
};

// Waits until NCCL accepts the next call. Returns the reason if it does not, otherwise an empty string.
std::string NcclCommunicator::wait_until_ready(const Deadline& deadline) const {
  while (true) {
    const CommunicatorStatus status(comm_);
    if (status.is_ready()) return "";
    if (!status.is_in_progress()) return status.text();
    if (const std::optional<std::string> reason = shared_.abandon_reason()) return *reason;
    if (deadline.has_passed()) return deadline_text(deadline);
    std::this_thread::sleep_for(kPollInterval);
  }
}

std::unique_ptr<Pending> NcclCommunicator::start(CommOperation operation) {
  const std::lock_guard lock(mutex_);
  auto started = std::make_shared<NcclOperation>();
  started->log_number =
      shared_.log.post(name(operation.kind), operation.description, text_, operation.bytes());
  started->operation = std::move(operation), started->begin_time = Deadline::Clock::now();
  in_flight_.push_back(started);
  if (const std::optional<std::string> reason = shared_.abandon_reason())
    fail(*reason);
  else if (!break_reason_.empty())
    fail(break_reason_);
  else
    enqueue(*started);
  return std::make_unique<NcclPending>(shared_from_this(), std::move(started));
}

void NcclCommunicator::enqueue(NcclOperation& started) {
  const c10::cuda::CUDAGuard guard(device_);
  c10::cuda::CUDAEvent ready;
  ready.record(c10::cuda::getCurrentCUDAStream(device_.index()));
  ready.block(stream_);
  const CommOperation& operation = started.operation;
  const void* from = operation.from.data_ptr();
  void* to = operation.to.data_ptr();
  const auto input_count = static_cast<std::size_t>(operation.from.numel()),
             output_count = static_cast<std::size_t>(operation.to.numel());
  const ncclDataType_t type = nccl_type(operation.to.scalar_type());
  const ncclRedOp_t sum = operation.sum == ReduceOp::sum ? ncclSum : ncclMax;
  started.begin_event.record(stream_);
  switch (operation.kind) {
    case CommKind::all_reduce:
      ncclAllReduce(from, to, input_count, type, sum, comm_, stream_);
      break;
    case CommKind::all_gather:
      ncclAllGather(from, to, input_count, type, comm_, stream_);
      break;
    case CommKind::reduce_scatter:
      ncclReduceScatter(from, to, output_count, type, sum, comm_, stream_);
      break;
    case CommKind::broadcast:
      ncclBroadcast(from, to, input_count, type, operation.root, comm_, stream_);
      break;
    case CommKind::connect:
    case CommKind::send:
    case CommKind::receive:
      ensure(false, "NCCL groups do not support {}", name(operation.kind));
  }
  // The communicator's state includes the result of the call above.
  const std::string problem =
      wait_until_ready(Deadline::after(kStartTimeout, "the start of an NCCL operation"));
  if (!problem.empty()) return fail(problem);
  started.end_event.record(stream_);
}

bool NcclCommunicator::is_done(NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  poll_locked();
  return operation.is_ended;
}

std::optional<Seconds> NcclCommunicator::duration(const NcclOperation& operation) {
  const std::lock_guard lock(mutex_);
  poll_locked();
  if (!operation.is_ended || operation.failure) return std::nullopt;
  return Seconds(operation.begin_event.elapsed_time(operation.end_event) / 1e3);
}

CommOutcome<void> NcclCommunicator::wait(NcclOperation& operation, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  poll_locked();
  if (operation.failure) return tl::unexpected(*operation.failure);
  if (!operation.is_ended) operation.deadline = deadline;
  operation.end_event.block(c10::cuda::getCurrentCUDAStream(device_.index()));
  return {};
}

// Device errors are detected here, by whichever thread polls, and handled like other failures.
void NcclCommunicator::poll_locked() {
  while (!in_flight_.empty()) {  // operations end in the order of the stream
    NcclOperation& first = *in_flight_.front();
    const cudaError_t event_status = cudaEventQuery(first.end_event.event());
    if (event_status == cudaErrorNotReady) cudaGetLastError();
    if (event_status == cudaErrorNotReady) break;
    if (event_status != cudaSuccess)
      return fail(fmt::format("CUDA error: {}", cudaGetErrorString(event_status)));
    first.is_ended = true;
    first.operation.from = first.operation.to = at::Tensor();
    shared_.log.end(first.log_number, FlightState::done);
    in_flight_.pop_front();
  }
  if (in_flight_.empty() || !break_reason_.empty()) return;
  if (const CommunicatorStatus status(comm_); !status.is_ready() && !status.is_in_progress())
    return fail(status.text());
  if (const std::optional<std::string> reason = shared_.abandon_reason()) return fail(*reason);
  const std::optional<Deadline>& deadline = in_flight_.front()->deadline;
  if (deadline && deadline->has_passed()) fail(deadline_text(*deadline));
}

// Fails all operations in flight. The communicator's kernels end when abort_failed() aborts it.
void NcclCommunicator::fail(const std::string& reason) {
  const bool is_first = break_reason_.empty();
  const std::vector<int> missing = is_first ? silent_members(reason) : std::vector<int>();
  for (const std::shared_ptr<NcclOperation>& operation : in_flight_) {
    operation->failure = {operation->operation.text(), text_, missing,
                          Seconds(seconds_since_begin(operation->begin_time)), reason};
    operation->is_ended = true;
    shared_.log.end(operation->log_number, FlightState::failed);
    if (!first_failure_) first_failure_ = operation->failure;
  }
  in_flight_.clear();
  if (is_first && first_failure_)
    break_reason_ = fmt::format("{} had failed: {}", first_failure_->operation, reason);
}

// NCCL does not report which member is missing. Each member that fails writes a note to the store; members
// without a note are missing.
std::vector<int> NcclCommunicator::silent_members(const std::string& reason) const {
  const auto key = [&](int rank) { return fmt::format("{}/gave-up-cards/{}", epoch_, rank); };
  if (shared_.store == nullptr || group_.members.size() < 2 || !shared_.store->set(key(shared_.rank), reason))
    return {};
  const Deadline deadline = Deadline::after(kNcclNoteTimeout, "notes");
  std::vector<int> silent = group_.members;
  while (true) {
    std::erase_if(silent, [&](int rank) {
      const auto note = shared_.store->find(key(rank));
      return note && *note;
    });
    if (silent.size() < 2 || deadline.has_passed()) return silent;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Outcome<ncclUniqueId> agree_on_id(SharedRankState& shared, const std::string& key, bool is_first,
                                  bool is_alone, const Deadline& deadline) {
  ncclUniqueId id;
  if (is_first) {
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      return failure("NCCL error: {}", ncclGetErrorString(result));
    if (is_alone) return id;
    if (const auto published = shared.store->set(key, std::string(id.internal, sizeof id.internal));
        !published)
      return tl::unexpected(published.error());
    return id;
  }
  while (true) {
    const auto stored = shared.store->find(key);
    if (!stored) return tl::unexpected(stored.error());
    if (*stored && (*stored)->size() == sizeof id.internal) {
      std::memcpy(id.internal, (*stored)->data(), sizeof id.internal);
      return id;
    }
    if (const std::optional<std::string> reason = shared.abandon_reason()) return failure("{}", *reason);
    if (deadline.has_passed()) return failure("{}", deadline_text(deadline));
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace

bool has_nccl() { return true; }

std::string gpu_id_of(at::Device device) {
  cudaDeviceProp properties;
  if (!device.is_cuda() || cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess) return "";
  std::string result;
  for (const char byte : properties.uuid.bytes)
    result += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return result;
}

Outcome<std::shared_ptr<NcclGroup>> connect_nccl_group(SharedRankState& shared, const std::string& key,
                                                       Group group, int epoch, at::Device device,
                                                       const Deadline& deadline) {
  const c10::cuda::CUDAGuard guard(device);
  const int member_index = member_index_of(shared.rank, group);
  const bool is_alone = group.members.size() == 1;
  const auto id = agree_on_id(shared, "nccl/" + key, member_index == 0, is_alone, deadline);
  if (!id) return tl::unexpected(id.error());
  auto communicator = std::make_shared<NcclCommunicator>(shared, std::move(group), epoch, device);
  if (const Outcome<void> connected = communicator->connect(*id, deadline); !connected)
    return tl::unexpected(connected.error());
  return communicator;
}

#else

bool has_nccl() { return false; }
std::string gpu_id_of(at::Device) { return ""; }
Outcome<std::shared_ptr<NcclGroup>> connect_nccl_group(SharedRankState&, const std::string&, Group, int,
                                                       at::Device, const Deadline&) {
  return failure("this build has no NCCL");
}

#endif

}  // namespace optimus
