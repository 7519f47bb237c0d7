// Implements c10d_comm.h.
#include "comm/c10d_comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/nccl_group.h"
#include "comm/process_group.h"
#include "comm/sum.h"

namespace optimus {
namespace {

constexpr std::chrono::milliseconds kMaxPollInterval{20};  // maximum pause between two polls of the store
// Limit of message tags. Gloo's tags have 31 bits; the remaining bits distinguish message sizes.
constexpr int kMaxTag = 0x7fff;

// The link of a group of one rank, which never exchanges messages.
class SingleRankLink final : public GroupLink {
 public:
  int group_index() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<LinkMessage> send(int member_index, const at::Tensor&, int) override {
    refuse(member_index);
  }
  std::unique_ptr<LinkMessage> receive(int member_index, const at::Tensor&, int) override {
    refuse(member_index);
  }
  void check(int member_index) override { refuse(member_index); }

 private:
  [[noreturn]] static void refuse(int member_index) {
    ensure(false, "cannot exchange a message with member {}: the group has only one member", member_index);
    std::abort();
  }
};

// Returns the tensor itself if it is in host memory, else a copy in host memory.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() ? tensor.to(at::kCPU) : tensor;
}

class ProcessPending final : public Pending {
 public:
  // `device_result` receives a copy of the result if the operation goes through host memory.
  ProcessPending(std::shared_ptr<ProcessGroup> group, std::shared_ptr<ProcessOperation> operation,
                 at::Tensor device_result)
      : group_(std::move(group)),
        operation_(std::move(operation)),
        device_result_(std::move(device_result)) {}

  // An operation runs even if wait() is never called, because the other members depend on this rank's part.
  ~ProcessPending() override {
    if (!is_waited_for_) group_->run_in_background(operation_);
  }

  bool is_done() override {
    if (!operation_->is_ended()) group_->run_in_background(operation_);
    return operation_->is_ended();
  }

  CommOutcome<void> wait(const Deadline& deadline) override {
    CommOutcome<void> outcome = operation_->wait(deadline);
    if (outcome && device_result_.defined() && !is_waited_for_)
      device_result_.copy_(operation_->exchange().operation().to);
    is_waited_for_ = true;
    return outcome;
  }

  std::optional<Deadline::Clock::time_point> end_time() const override { return operation_->end_time(); }
  std::optional<Seconds> duration() const override { return operation_->duration(); }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<ProcessOperation> operation_;
  const at::Tensor device_result_;
  bool is_waited_for_ = false;
};

class ProcessComm final : public Comm {
 public:
  ProcessComm(const ProcessCommOptions& options, std::unique_ptr<StoreClient> store)
      : worker_id_(options.rank),
        size_(options.size),
        device_(options.device),
        gpu_id_(gpu_id_of(options.device)),
        store_(std::move(store)),
        shared_(options.rank) {
    shared_.store = store_.get(), shared_.sizes = options.sizes;
  }
  ~ProcessComm() override {
    for (auto& [key, group] : groups_) close(group, "the rank has exited");
  }

  int rank() const override { return shared_.rank; }
  int size() const override { return size_; }
  void change_membership(const Membership& membership) override;
  void shrink(int size) override { size_ = size; }
  const FlightLog& flight_log() const override { return shared_.log; }
  void abandon(const std::string& reason) override { shared_.abandon(reason); }

  CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    epoch_ = epoch;
    return prepare(epoch, groups, deadline);
  }
  CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) override;
  void decline(int epoch, const std::string& reason) override;
  void drop(int epoch) override;
  CommOutcome<void> synchronize(const Deadline& deadline) override { return watch_.synchronize(deadline); }
  bool uses_nccl() const override {
    const std::lock_guard lock(mutex_);
    return std::any_of(groups_.begin(), groups_.end(), [&](const auto& entry) {
      return entry.first.epoch == epoch_ && entry.first.group.members.size() > 1 &&
             entry.second.gpus != nullptr;
    });
  }

  std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, ReduceOp kind,
                                      std::string_view description) override {
    return collective(group, all_reduce_operation(std::move(tensor), kind, description));
  }
  std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                      std::string_view description) override {
    return collective(group,
                      all_gather_operation(std::move(from), std::move(to), num_members(group), description));
  }
  std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                          std::string_view description) override {
    return collective(
        group, reduce_scatter_operation(std::move(from), std::move(to), num_members(group), description));
  }
  std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                     std::string_view description) override {
    const int member_index = member_index_of(root, with_members(group, size_));
    return collective(group, broadcast_operation(std::move(tensor), member_index, description));
  }
  std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view description) override {
    return send_ahead(epoch_, peer, std::move(tensor), tag, description);
  }
  std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag,
                                   std::string_view description) override {
    return receive_ahead(epoch_, peer, std::move(tensor), tag, description);
  }
  std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                      std::string_view description) override {
    return message(epoch, peer, tag, message_operation(CommKind::send, std::move(tensor), description));
  }
  std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                         std::string_view description) override {
    return message(epoch, peer, tag, message_operation(CommKind::receive, std::move(tensor), description));
  }

 private:
  // The purpose of a group's connections. Messages to higher ranks (up) and to lower ranks (down) use
  // separate connections. Gloo sends a message only after its receiver has announced that it is ready. On a
  // shared connection, this announcement would have to wait for everything that the receiver itself sends.
  enum class Use { collectives, messages_up, messages_down };
  struct Key {
    int epoch = 0;
    Use use = Use::collectives;
    Group group;
    bool operator<(const Key& other) const {
      return std::tie(epoch, use, group.role, group.members) <
             std::tie(other.epoch, other.use, other.group.role, other.group.members);
    }
  };
  static const char* key_part(Use use) {
    switch (use) {
      case Use::collectives:
        return "";
      case Use::messages_up:
        return "up-";
      case Use::messages_down:
        return "down-";
    }
    std::abort();
  }
  // The store key under which the members of a group connect.
  std::string connection_key(const Key& key) const {
    return fmt::format("{}/{}/{}{}/{}", shared_.generation, key.epoch, key_part(key.use),
                       static_cast<int>(key.group.role), fmt::join(key.group.members, "-"));
  }

  int num_members(const Group& group) const {
    return static_cast<int>(with_members(group, size_).members.size());
  }
  struct Members {
    std::shared_ptr<ProcessGroup> messages;  // shared with operations in flight
    std::shared_ptr<NcclGroup> gpus;         // shared with operations in flight; null if NCCL cannot be used
  };

  CommOutcome<void> connect(const Key& key, const Deadline& deadline);
  CommOutcome<void> connect_nccl_group(const Key& key, const Deadline& deadline, Members& members);
  Outcome<std::vector<std::string>> gpu_ids_of(const Key& key);
  void close(Members& members, const std::string& reason);
  CommOutcome<void> wait_for_arrival(const Key& key, const Deadline& deadline);
  CommFailure connect_failure(const Key& key, const std::string& reason,
                              Deadline::Clock::time_point begin_time);
  CommFailure declined_failure(const Key& key, const std::string& stored,
                               Deadline::Clock::time_point begin_time) const;
  std::unique_ptr<Pending> collective(const Group& group, CommOperation operation);
  std::unique_ptr<Pending> message(int epoch, int peer, int tag, CommOperation operation);
  bool is_connected(const Key& key) const;
  const Members& find(const Key& key) const;

  const int worker_id_;
  int size_;
  const at::Device device_;
  const std::string gpu_id_;  // empty if the rank has no GPU that NCCL can use
  const std::unique_ptr<StoreClient> store_;
  SharedRankState shared_;
  int epoch_ = 0;
  mutable std::mutex mutex_;       // protects groups_, because another thread may call prepare()
  std::map<Key, Members> groups_;  // references to its elements stay valid
  NcclWatchdog watch_;
};

std::string arrival_key(const std::string& group, int rank) {
  return fmt::format("arrived/{}/{}", group, rank);
}
// The value of this key is empty once all members have arrived. If a rank declines to connect, the value is
// the rank and its reason, for example "3 too little memory".
std::string arrivals_key(const std::string& group) { return fmt::format("arrived/{}/all", group); }

CommFailure ProcessComm::connect_failure(const Key& key, const std::string& reason,
                                         Deadline::Clock::time_point begin_time) {
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
  CommFailure failure{"connect", group_text(key.group, key.epoch), {}, Seconds(waited), reason};
  for (const int member : key.group.members) {
    const auto arrival = store_->find(arrival_key(connection_key(key), member));
    if (!arrival) break;  // the store itself is unreachable
    if (!*arrival) failure.missing.push_back(member);
  }
  return failure;
}

CommFailure ProcessComm::declined_failure(const Key& key, const std::string& stored,
                                          Deadline::Clock::time_point begin_time) const {
  int declining_rank = 0;
  const auto [end, problem] = std::from_chars(stored.data(), stored.data() + stored.size(), declining_rank);
  const std::string reason(end, stored.data() + stored.size());
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
  return {"connect",
          group_text(key.group, key.epoch),
          {declining_rank},
          Seconds(waited),
          fmt::format("rank {} declined to connect:{}", declining_rank, reason)};
}

// The last member to arrive sets one key that the other members poll, so that no member has to poll one key
// per rank.
CommOutcome<void> ProcessComm::wait_for_arrival(const Key& key, const Deadline& deadline) {
  const auto begin_time = Deadline::Clock::now();
  const std::string all_arrived_key = arrivals_key(connection_key(key));
  Outcome<void> stored = store_->set(arrival_key(connection_key(key), rank()), gpu_id_);
  const Outcome<std::int64_t> count =
      stored ? store_->increment(fmt::format("arrived/{}/number", connection_key(key)))
             : Outcome<std::int64_t>(0);
  if (stored && count && *count == std::ssize(key.group.members)) stored = store_->set(all_arrived_key, "");
  if (!stored || !count)
    return tl::unexpected(connect_failure(key, (stored ? count.error() : stored.error()).why, begin_time));
  for (std::chrono::milliseconds pause(1);; pause = std::min(2 * pause, kMaxPollInterval)) {
    const auto value = store_->find(all_arrived_key);
    if (!value) return tl::unexpected(connect_failure(key, value.error().why, begin_time));
    if (*value && !(*value)->empty()) return tl::unexpected(declined_failure(key, **value, begin_time));
    if (*value) return {};
    if (const auto reason = shared_.abandon_reason())
      return tl::unexpected(connect_failure(key, *reason, begin_time));
    if (deadline.has_passed())
      return tl::unexpected(connect_failure(key, deadline_text(deadline), begin_time));
    std::this_thread::sleep_for(pause);
  }
}

CommOutcome<void> ProcessComm::connect(const Key& key, const Deadline& deadline) {
  if (is_connected(key)) return {};
  const int size = static_cast<int>(key.group.members.size());
  std::unique_ptr<GroupLink> link;
  if (size > 1) {
    const auto begin_time = Deadline::Clock::now();
    if (const auto arrival = wait_for_arrival(key, deadline); !arrival) return arrival;
    auto connection = store_->link(connection_key(key), member_index_of(rank(), key.group), size, deadline,
                                   [this] { return shared_.abandon_reason(); });
    if (!connection) return tl::unexpected(connect_failure(key, connection.error().why, begin_time));
    link = std::move(*connection);
  } else {
    link = std::make_unique<SingleRankLink>();
  }
  Members members{std::make_shared<ProcessGroup>(shared_, key.group, key.epoch, std::move(link)), {}};
  if (key.use == Use::collectives && !gpu_id_.empty())
    if (const auto connected = connect_nccl_group(key, deadline, members); !connected) {
      close(members, connected.error().reason);
      return connected;
    }
  const std::lock_guard lock(mutex_);
  groups_.emplace(key, std::move(members));
  return {};
}

// Returns the GPU ids that the members wrote when they arrived.
Outcome<std::vector<std::string>> ProcessComm::gpu_ids_of(const Key& key) {
  if (key.group.members.size() == 1) return std::vector<std::string>{gpu_id_};
  std::vector<std::string> result;
  for (const int member : key.group.members) {
    const auto gpu_id = store_->find(arrival_key(connection_key(key), member));
    if (!gpu_id) return tl::unexpected(gpu_id.error());
    result.push_back(gpu_id->value_or(""));
  }
  return result;
}

// All members see the same GPU ids, so all make the same decision.
CommOutcome<void> ProcessComm::connect_nccl_group(const Key& key, const Deadline& deadline,
                                                  Members& members) {
  const auto begin_time = Deadline::Clock::now();
  const auto gpus = gpu_ids_of(key);
  if (!gpus) return tl::unexpected(connect_failure(key, gpus.error().why, begin_time));
  if (!why_nccl_is_unusable(key.group.members, *gpus).empty()) return {};
  auto nccl_group =
      optimus::connect_nccl_group(shared_, connection_key(key), key.group, key.epoch, device_, deadline);
  if (!nccl_group) return tl::unexpected(connect_failure(key, nccl_group.error().why, begin_time));
  members.gpus = *nccl_group;
  watch_.add(std::move(*nccl_group));
  return {};
}

void ProcessComm::close(Members& members, const std::string& reason) {
  if (members.gpus != nullptr) {
    watch_.remove(*members.gpus);
    members.gpus->close(reason);
  }
  members.messages->close(reason);
}

CommOutcome<void> ProcessComm::prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) {
  const Group world_group = with_members({Role::world, {}}, size_);
  for (const Use use : {Use::messages_up, Use::messages_down})
    if (const auto connected = connect({epoch, use, world_group}, deadline); !connected) return connected;
  for (const Group& group : own_groups(groups, rank(), size_))
    if (const auto connected = connect({epoch, Use::collectives, group}, deadline); !connected)
      return connected;
  return {};
}

void ProcessComm::change_membership(const Membership& membership) {
  std::map<Key, Members> closing_groups;
  {
    const std::lock_guard lock(mutex_);
    closing_groups.swap(groups_);
  }
  for (auto& [key, group] : closing_groups) close(group, "the membership has changed");
  const auto member_index = std::find(membership.worker_ids.begin(), membership.worker_ids.end(), worker_id_);
  ensure(member_index != membership.worker_ids.end(), "worker {} is not a member of generation {}",
         worker_id_, membership.generation);
  shared_.start_generation(membership.generation,
                           static_cast<int>(member_index - membership.worker_ids.begin()));
  size_ = static_cast<int>(membership.worker_ids.size()), epoch_ = 0;
}

// Writes the reason to the arrival key of the first group that all ranks connect. A rank that does not read
// it waits until the deadline.
void ProcessComm::decline(int epoch, const std::string& reason) {
  const Key first_key{epoch, Use::messages_up, with_members({Role::world, {}}, size_)};
  (void)store_->set(arrivals_key(connection_key(first_key)), fmt::format("{} {}", rank(), reason));
}

// Closing takes time, so the lock is not held while groups are closed.
void ProcessComm::drop(int epoch) {
  std::vector<Members> dropped;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, group] : groups_)
      if (key.epoch == epoch) dropped.push_back(group);
    std::erase_if(groups_, [&](const auto& entry) { return entry.first.epoch == epoch; });
  }
  for (Members& group : dropped) close(group, "the epoch has ended");
}

bool ProcessComm::is_connected(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return groups_.contains(key);
}

const ProcessComm::Members& ProcessComm::find(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto match = groups_.find(key);
  ensure(match != groups_.end(), "rank {}: {} is not connected", rank(), group_text(key.group, key.epoch));
  return match->second;
}

std::unique_ptr<Pending> ProcessComm::collective(const Group& group, CommOperation operation) {
  const Members& members = find({epoch_, Use::collectives, with_members(group, size_)});
  if (operation.to.is_cuda() && members.gpus != nullptr) return members.gpus->start(std::move(operation));
  at::Tensor device_result;
  if (!operation.to.is_cpu()) {
    const bool is_in_place = operation.from.is_same(operation.to);
    device_result = operation.to;
    operation.from = on_host(operation.from);
    operation.to = is_in_place ? operation.from : on_host(operation.to);
  }
  return std::make_unique<ProcessPending>(members.messages, members.messages->start(std::move(operation)),
                                          device_result);
}

std::unique_ptr<Pending> ProcessComm::message(int epoch, int peer, int tag, CommOperation operation) {
  ensure(peer >= 0 && peer < size_ && peer != rank() && tag >= 0 && tag < kMaxTag,
         "rank {} of {}: invalid message: peer rank {}, tag {}", rank(), size_, peer, tag);
  const bool is_up = (operation.kind == CommKind::send) == (peer > rank());
  const std::shared_ptr<ProcessGroup>& world_group =
      find({epoch, is_up ? Use::messages_up : Use::messages_down, with_members({Role::world, {}}, size_)})
          .messages;
  at::Tensor device_result;
  if (operation.to.defined() && !operation.to.is_cpu()) device_result = operation.to;
  operation.from = on_host(operation.from), operation.to = on_host(operation.to);
  const std::uint64_t hash = static_cast<std::uint64_t>(operation.bytes()) * 0x9e3779b97f4a7c15U;
  const int tag_with_hash = tag << 16 | static_cast<int>(hash >> 48);
  return std::make_unique<ProcessPending>(
      world_group, world_group->start_message(std::move(operation), peer, tag_with_hash), device_result);
}

}  // namespace

Outcome<std::unique_ptr<Comm>> make_process_comm(const ProcessCommOptions& options,
                                                 const Deadline& deadline) {
  ensure(options.rank >= 0 && options.rank < options.size, "rank {} is not in a world of {} ranks",
         options.rank, options.size);
  StoreClient::StoreEndpoint endpoint = options.store;
  if (endpoint.address.empty()) endpoint.address = "127.0.0.1";
  auto store = StoreClient::connect(endpoint, deadline);
  if (!store) return tl::unexpected(store.error());
  return std::make_unique<ProcessComm>(options, std::move(*store));
}

}  // namespace optimus
