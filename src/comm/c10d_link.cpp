// See c10d_link.h.
#include "comm/c10d_link.h"

#define USE_C10D_GLOO
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace optimus {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStorePatience{5000};
constexpr int kCheckTag = 0x7fffffff;  // nobody receives it

milliseconds remaining(const Deadline& deadline) {
  return milliseconds(
      std::max<std::int64_t>(1, static_cast<std::int64_t>(1000 * deadline.remaining().value)));
}

// Gloo and c10d put file names, stack traces and addresses around what they have to say.
std::string in_short(std::string_view what) {
  for (const char* closed :
       {"closed by peer", "reset by peer", "Broken pipe", "Socket closed", "pair closure"})
    if (what.find(closed) != std::string_view::npos) return "connection closed by peer";
  if (what.starts_with("[")) what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
  what = what.substr(0, what.find('\n'));
  return std::string(what.substr(0, 200));
}

template <typename Function>
auto outcome_of(const char* doing, Function&& function) -> Outcome<decltype(function())> {
  try {
    if constexpr (std::is_void_v<decltype(function())>) {
      function();
      return {};
    } else {
      return function();
    }
  } catch (const std::exception& error) {
    return failure("{}: {}", doing, in_short(error.what()));
  }
}

int loopback_listener() {
  const int handle = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (handle < 0 || ::bind(handle, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(handle, 1024) != 0) {
    const int reason = errno;
    if (handle >= 0) ::close(handle);
    throw UserError("no port of the loopback interface can be had: {}", std::strerror(reason));
  }
  return handle;
}

int port_of(int handle) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(handle, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

using GlooWork = c10::intrusive_ptr<c10d::Work>;

// Messages that are done, a while longer. Gloo's thread lets go of a message just after it has woken whoever waits for it, and
// whoever destroys it sooner spins until then: milliseconds, where there are more threads than cores. They do not own memory.
class Retired {
 public:
  void add(GlooWork work) {
    GlooWork oldest;
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(work));
    if (all_.size() <= kKept) return;
    oldest = std::move(all_.front());
    all_.pop_front();
  }

 private:
  static constexpr std::size_t kKept = 64;
  std::mutex mutex_;
  std::deque<GlooWork> all_;
};

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(GlooWork work, int place, std::shared_ptr<Retired> retired)
      : work_(std::move(work)), place_(place), retired_(std::move(retired)) {}
  ~GlooTransfer() override {
    if (is_done_) retired_->add(std::move(work_));
  }

  bool wait(milliseconds timeout) override {
    try {
      is_done_ = work_->wait(std::max(timeout, milliseconds(1)));  // none would mean Gloo's own
      return is_done_;
    } catch (const std::exception& error) {
      throw LinkError{LinkError::Kind::closed, place_, in_short(error.what())};
    }
  }
  void interrupt() override { work_->abort(); }

 private:
  GlooWork work_;
  const int place_;
  const std::shared_ptr<Retired> retired_;  // shared: with the link, which may end before
  bool is_done_ = false;
};

class GlooLink final : public Wire {
 public:
  explicit GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : group_(std::move(group)), retired_(std::make_shared<Retired>()), empty_(at::empty({1}, at::kByte)) {}

  int place() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  std::unique_ptr<Transfer> send(int place, const at::Tensor& row, int tag) override {
    return start(
        place, [&](std::vector<at::Tensor>& rows) { return group_->send(rows, place, tag); }, row);
  }
  std::unique_ptr<Transfer> receive(int place, const at::Tensor& row, int tag) override {
    return start(
        place, [&](std::vector<at::Tensor>& rows) { return group_->recv(rows, place, tag); }, row);
  }
  void check(int place) override { send(place, empty_, kCheckTag); }

 private:
  template <typename Function>
  std::unique_ptr<Transfer> start(int place, Function&& function, const at::Tensor& row) {
    // Whoever started the operation owns the memory: what is retired must not hold it.
    std::vector<at::Tensor> rows = {
        at::from_blob(row.data_ptr(), {static_cast<std::int64_t>(row.nbytes())}, at::kByte)};
    try {
      return std::make_unique<GlooTransfer>(function(rows), place, retired_);
    } catch (const std::exception& error) {
      throw LinkError{LinkError::Kind::closed, place, in_short(error.what())};
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const std::shared_ptr<Retired> retired_;
  const at::Tensor empty_;
};

}  // namespace

struct StoreServer::Parts {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

namespace {

// Gloo writes to sockets whose other end may be gone. That is a failure like others, told by the write; its signal would end the
// process, unless somebody has said what to do then.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

StoreServer::StoreServer() : parts_(std::make_unique<Parts>()) {
  ignore_broken_pipes();
  const int listener = loopback_listener();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_of(listener));
  options.isServer = true, options.waitWorkers = false, options.masterListenFd = listener;
  options.timeout = kStorePatience;
  try {
    parts_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    throw UserError("the store at 127.0.0.1:{} could not be started: {}", options.port,
                    in_short(error.what()));
  }
}

StoreServer::~StoreServer() = default;
int StoreServer::port() const { return parts_->store->getPort(); }

struct StoreClient::Parts {
  Place place;
  c10::intrusive_ptr<c10d::TCPStore> connection;
  c10::intrusive_ptr<c10d::Store> store;  // with the run's token before every key
  std::shared_ptr<gloo::transport::Device> device;
};

StoreClient::StoreClient(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
StoreClient::~StoreClient() = default;

Outcome<std::unique_ptr<StoreClient>> StoreClient::connect(const Place& place, const Deadline& deadline) {
  ignore_broken_pipes();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.waitWorkers = false, options.timeout = remaining(deadline);
  auto parts = std::make_unique<Parts>();
  parts->place = place;
  const Outcome<void> made = outcome_of("the store", [&] {
    parts->connection = c10::make_intrusive<c10d::TCPStore>(place.host, options);
    parts->connection->setTimeout(kStorePatience);
    parts->store = c10::make_intrusive<c10d::PrefixStore>(place.token, parts->connection);
    parts->device = c10d::ProcessGroupGloo::createDeviceForHostname(place.address);
  });
  if (!made)
    return failure("the store at {}:{} is not reached: {}", place.host, place.port, made.error().why);
  return std::unique_ptr<StoreClient>(new StoreClient(std::move(parts)));
}

Outcome<void> StoreClient::set(const std::string& key, const std::string& value) {
  return outcome_of("the store",
                    [&] { parts_->store->set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
}

Outcome<std::optional<std::string>> StoreClient::find(const std::string& key) {
  return outcome_of("the store", [&]() -> std::optional<std::string> {
    if (!parts_->store->check({key})) return std::nullopt;
    const std::vector<std::uint8_t> value = parts_->store->get(key);
    return std::string(value.begin(), value.end());
  });
}

Outcome<std::int64_t> StoreClient::count(const std::string& key) {
  return outcome_of("the store", [&] { return parts_->store->add(key, 1); });
}

Outcome<std::unique_ptr<Wire>> StoreClient::link(const std::string& key, int place, int size,
                                                 const Deadline& deadline) {
  return outcome_of("connecting", [&]() -> std::unique_ptr<Wire> {
    auto options = c10d::ProcessGroupGloo::Options::create(remaining(deadline));
    options->devices = {parts_->device};
    options->threads = 1;
    const auto store = c10::make_intrusive<c10d::PrefixStore>(key, parts_->store);
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, place, size, options);
    return std::make_unique<GlooLink>(std::move(group));
  });
}

}  // namespace optimus
