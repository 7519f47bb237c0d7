// See c10d_link.h.
#include "comm/c10d_link.h"

#define USE_C10D_GLOO
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "store/key_store.h"

namespace optimus {
namespace {

using std::chrono::milliseconds;

constexpr int kCheckTag = 0x7fffffff;             // a tag that no member ever receives
constexpr milliseconds kAbandonPollInterval{20};  // how often `abandon_reason` is polled

milliseconds remaining(const Deadline& deadline) {
  return milliseconds(
      std::max<std::int64_t>(1, static_cast<std::int64_t>(1000 * deadline.remaining().value)));
}

// Returns the essential part of an error message from Gloo or c10d, without file names, stack traces and
// addresses.
std::string short_error(std::string_view message) {
  for (const char* phrase :
       {"closed by peer", "reset by peer", "Broken pipe", "Socket closed", "pair closure"})
    if (message.find(phrase) != std::string_view::npos) return "connection closed by peer";
  if (message.starts_with("[")) message.remove_prefix(std::min(message.size(), message.find("] ") + 2));
  message = message.substr(0, message.find('\n'));
  return std::string(message.substr(0, 200));
}

template <typename Function>
auto outcome_of(const char* activity, Function&& function) -> Outcome<decltype(function())> {
  try {
    if constexpr (std::is_void_v<decltype(function())>) {
      function();
      return {};
    } else {
      return function();
    }
  } catch (const std::exception& error) {
    return failure("{}: {}", activity, short_error(error.what()));
  }
}

using GlooWork = c10::intrusive_ptr<c10d::Work>;

// Keeps finished messages alive for a while. Gloo's thread releases a message just after it has woken the
// waiting thread. A destructor that runs earlier spins until the release, which takes milliseconds if there
// are more threads than cores. The messages do not own their data.
class RetiredMessages {
 public:
  void add(GlooWork gloo_work) {
    GlooWork oldest;
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(gloo_work));
    if (messages_.size() <= kMaxRetired) return;
    oldest = std::move(messages_.front());
    messages_.pop_front();
  }

 private:
  static constexpr std::size_t kMaxRetired = 64;
  std::mutex mutex_;
  std::deque<GlooWork> messages_;
};

class GlooTransfer final : public LinkMessage {
 public:
  GlooTransfer(GlooWork gloo_work, int member_index, std::shared_ptr<RetiredMessages> retired)
      : gloo_work_(std::move(gloo_work)), member_index_(member_index), retired_(std::move(retired)) {}
  ~GlooTransfer() override {
    if (is_done_) retired_->add(std::move(gloo_work_));
  }

  bool wait(milliseconds timeout) override {
    try {
      is_done_ = gloo_work_->wait(std::max(timeout, milliseconds(1)));  // 0 would select Gloo's own timeout
      return is_done_;
    } catch (const std::exception& error) {
      throw LinkError{LinkError::Kind::closed, member_index_, short_error(error.what())};
    }
  }
  void interrupt() override { gloo_work_->abort(); }

 private:
  GlooWork gloo_work_;
  const int member_index_;
  const std::shared_ptr<RetiredMessages> retired_;  // shared with the link, which may be destroyed first
  bool is_done_ = false;
};

class GlooLink final : public GroupLink {
 public:
  explicit GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : group_(std::move(group)),
        retired_(std::make_shared<RetiredMessages>()),
        empty_(at::empty({1}, at::kByte)) {}

  int group_index() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  std::unique_ptr<LinkMessage> send(int member_index, const at::Tensor& row, int tag) override {
    return start(
        member_index, [&](std::vector<at::Tensor>& rows) { return group_->send(rows, member_index, tag); },
        row);
  }
  std::unique_ptr<LinkMessage> receive(int member_index, const at::Tensor& row, int tag) override {
    return start(
        member_index, [&](std::vector<at::Tensor>& rows) { return group_->recv(rows, member_index, tag); },
        row);
  }
  void check(int member_index) override { send(member_index, empty_, kCheckTag); }

 private:
  template <typename Function>
  std::unique_ptr<LinkMessage> start(int member_index, Function&& function, const at::Tensor& row) {
    // The tensor does not own the memory, because retired messages must not keep it alive.
    std::vector<at::Tensor> rows = {
        at::from_blob(row.data_ptr(), {static_cast<std::int64_t>(row.nbytes())}, at::kByte)};
    try {
      return std::make_unique<GlooTransfer>(function(rows), member_index, retired_);
    } catch (const std::exception& error) {
      throw LinkError{LinkError::Kind::closed, member_index, short_error(error.what())};
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const std::shared_ptr<RetiredMessages> retired_;
  const at::Tensor empty_;
};

// By default, Gloo tries five times to reach a peer, each time until the deadline. If a rank died while
// connecting, the other ranks would wait five times as long as intended. A value that the user has set is not
// changed.
void disable_connection_retries() {
  static const int status = ::setenv("GLOO_DISABLE_CONNECTION_RETRIES", "1", /*overwrite=*/0);
  (void)status;
}

// Gloo may write to a socket that the peer has closed. The write itself returns an error, but SIGPIPE would
// terminate the process. If the program has installed a handler, it is not replaced.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

using RawBytes = std::vector<std::uint8_t>;

// The store interface that Gloo uses while ranks connect. Gloo waits for values that other ranks set.
class GlooStore final : public c10d::Store {
 public:
  // `store` is shared with groups, which may outlive the rank's client. `is_abandoned` becomes true when no
  // caller waits for the group any more.
  GlooStore(std::shared_ptr<KeyStore> store, std::string prefix, const Deadline& deadline,
            std::shared_ptr<const std::atomic<bool>> is_abandoned)
      : c10d::Store(remaining(deadline)),
        store_(std::move(store)),
        prefix_(std::move(prefix)),
        is_abandoned_(std::move(is_abandoned)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<GlooStore>(store_, prefix_, deadline_of(timeout_), is_abandoned_);
  }
  void set(const std::string& key, const RawBytes& value) override {
    value_or_throw(store_->set(prefix_ + key, std::string(value.begin(), value.end())));
  }
  RawBytes get(const std::string& key) override {
    const std::string value = wait_for(key, deadline_of(timeout_));
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    ensure(amount == 1, "Gloo adds {} to key {}, but only increments of 1 are supported", amount, key);
    return value_or_throw(store_->increment(prefix_ + key));
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return value_or_throw(store_->find(prefix_ + key)).has_value();
    });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const Deadline deadline = deadline_of(timeout);
    for (const std::string& key : keys) wait_for(key, deadline);
  }
  bool deleteKey(const std::string&) override { return false; }
  std::int64_t getNumKeys() override { return 0; }

 private:
  static Deadline deadline_of(milliseconds timeout) {
    return Deadline::after(Seconds(static_cast<double>(timeout.count()) / 1000), "connecting");
  }
  std::string wait_for(const std::string& key, const Deadline& deadline) const {
    const auto check_abandoned = [this] {
      if (*is_abandoned_) throw std::runtime_error("the connection attempt was abandoned");
    };
    return value_or_throw(wait_for_key(*store_, prefix_ + key, deadline, check_abandoned));
  }

  const std::shared_ptr<KeyStore> store_;
  const std::string prefix_;
  const std::shared_ptr<const std::atomic<bool>> is_abandoned_;
};

}  // namespace

struct StoreClient::Impl {
  std::shared_ptr<KeyStore> store;  // shared with Gloo's groups
  std::string prefix;
  std::shared_ptr<gloo::transport::Device> device;
};

StoreClient::StoreClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreClient::~StoreClient() = default;

Outcome<std::unique_ptr<StoreClient>> StoreClient::connect(const StoreEndpoint& address,
                                                           const Deadline& deadline) {
  ignore_broken_pipes();
  disable_connection_retries();
  auto impl = std::make_unique<Impl>();
  impl->store = address.store, impl->prefix = address.prefix;
  if (impl->store == nullptr) {
    auto store = open_store({address.host, address.port, address.token, address.is_etcd}, deadline);
    if (!store) return tl::unexpected(store.error());
    impl->store = std::move(*store);
  }
  const Outcome<void> has_device = outcome_of(
      "Gloo", [&] { impl->device = c10d::ProcessGroupGloo::createDeviceForHostname(address.address); });
  if (!has_device)
    return failure("{} is not an address of this machine: {}", address.address, has_device.error().why);
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(impl)));
}

Outcome<void> StoreClient::set(const std::string& key, const std::string& value) {
  return impl_->store->set(impl_->prefix + key, value);
}

Outcome<std::optional<std::string>> StoreClient::find(const std::string& key) {
  return impl_->store->find(impl_->prefix + key);
}

Outcome<std::int64_t> StoreClient::increment(const std::string& key) {
  return impl_->store->increment(impl_->prefix + key);
}

// Gloo connects in a single call that cannot be cancelled, so the call runs on a detached thread. If the
// attempt is abandoned, the thread ends when its wait for a key or Gloo's wait for a peer ends.
Outcome<std::unique_ptr<GroupLink>> StoreClient::link(const std::string& key, int member_index, int size,
                                                      const Deadline& deadline,
                                                      const AbandonCheck& abandon_reason) {
  using GlooGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
  const auto is_abandoned = std::make_shared<std::atomic<bool>>(false);
  const auto store =
      c10::make_intrusive<GlooStore>(impl_->store, impl_->prefix + key + "/", deadline, is_abandoned);
  std::packaged_task<Outcome<GlooGroup>()> connect_task(
      [store, member_index, size, deadline, device = impl_->device] {
        return outcome_of("connecting", [&] {
          auto options = c10d::ProcessGroupGloo::Options::create(remaining(deadline));
          options->devices = {device};
          options->threads = 1;
          return c10::make_intrusive<c10d::ProcessGroupGloo>(store, member_index, size, options);
        });
      });
  std::future<Outcome<GlooGroup>> group = connect_task.get_future();
  // Gloo waits for the peers one after the other, until `deadline`. This loop waits one second longer, so
  // that Gloo can report its own error, which names the missing peer.
  const Deadline extended_deadline = Deadline::after(Seconds(deadline.remaining().value + 1), "connecting");
  std::thread(std::move(connect_task)).detach();
  while (group.wait_for(kAbandonPollInterval) != std::future_status::ready) {
    std::optional<std::string> reason = abandon_reason();
    if (!reason && extended_deadline.has_passed()) reason = "the other members did not connect in time";
    if (!reason) continue;
    *is_abandoned = true;
    return failure("connecting: {}", *reason);
  }
  Outcome<GlooGroup> connection = group.get();
  if (!connection) return tl::unexpected(connection.error());
  return std::make_unique<GlooLink>(std::move(*connection));
}

namespace {

Outcome<c10::intrusive_ptr<c10d::TCPStore>> torch_store(const std::string& host, int port,
                                                        const Deadline& deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false, options.timeout = remaining(deadline);
  return outcome_of("torchrun's store", [&] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
}

}  // namespace

Outcome<void> announce_in_torch_store(const std::string& host, int port, const std::string& key,
                                      const std::string& value, const Deadline& deadline) {
  const auto store = torch_store(host, port, deadline);
  if (!store) return tl::unexpected(store.error());
  return outcome_of("torchrun's store", [&] { (*store)->set(key, RawBytes(value.begin(), value.end())); });
}

Outcome<std::string> read_from_torch_store(const std::string& host, int port, const std::string& key,
                                           const Deadline& deadline) {
  const auto store = torch_store(host, port, deadline);
  if (!store) return tl::unexpected(store.error());
  return outcome_of("torchrun's store", [&] {
    (*store)->setTimeout(remaining(deadline));
    const RawBytes value = (*store)->get(key);
    return std::string(value.begin(), value.end());
  });
}

}  // namespace optimus
