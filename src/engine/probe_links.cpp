// See probe_links.h.
#include "engine/probe_links.h"

#include <ATen/ops/empty.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "engine/probe_timing.h"

namespace optimus {
namespace {

constexpr double kSocketTimeout = 10;  // seconds without data after which the probe fails

class ProbeSocket {
 public:
  explicit ProbeSocket(int handle) : handle_(handle) {
    if (handle_ < 0)
      throw RuntimeFailure("cannot create a socket on the loopback interface: {}", std::strerror(errno));
    const timeval timeout{static_cast<time_t>(kSocketTimeout), 0};
    const int on = 1;
    ::setsockopt(handle_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    ::setsockopt(handle_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    ::setsockopt(handle_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~ProbeSocket() {
    if (handle_ >= 0) ::close(handle_);
  }
  ProbeSocket(ProbeSocket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  ProbeSocket& operator=(ProbeSocket&&) = delete;

  int handle() const { return handle_; }
  // send() and receive() transfer the whole buffer. They return false if the peer closed the connection or
  // the operation timed out.
  bool send(const char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t num_bytes = ::send(handle_, data, size, MSG_NOSIGNAL);
      if (num_bytes <= 0) return false;
      data += num_bytes, size -= static_cast<std::size_t>(num_bytes);
    }
    return true;
  }
  bool receive(char* data, std::size_t size) const {
    while (size > 0) {
      const ssize_t num_bytes = ::recv(handle_, data, size, 0);
      if (num_bytes <= 0) return false;
      data += num_bytes, size -= static_cast<std::size_t>(num_bytes);
    }
    return true;
  }

 private:
  int handle_;
};

std::pair<ProbeSocket, ProbeSocket> socket_pair() {
  ProbeSocket listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ProbeSocket client(::socket(AF_INET, SOCK_STREAM, 0));
  if (::bind(listener.handle(), name, size) != 0 || ::listen(listener.handle(), 1) != 0 ||
      ::getsockname(listener.handle(), name, &size) != 0 || ::connect(client.handle(), name, size) != 0)
    throw RuntimeFailure("cannot use the loopback interface: {}", std::strerror(errno));
  return {std::move(client), ProbeSocket(::accept(listener.handle(), nullptr, nullptr))};
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the seconds of a message of `size` bytes in one direction, which is half the round-trip time.
double message_seconds(std::size_t size) {
  const auto [near_end, far_end] = socket_pair();
  const int rounds = size > (1 << 20) ? 7 : 50;
  std::jthread echo([&other = far_end, size, rounds] {
    std::vector<char> data(size);
    for (int i = 0; i < rounds && other.receive(data.data(), size); ++i)
      if (!other.send(data.data(), size)) return;
  });
  std::vector<char> data(size);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const double begin_time = seconds_now();
    if (!near_end.send(data.data(), size) || !near_end.receive(data.data(), size))
      throw RuntimeFailure("received no data on the loopback interface for {} s", kSocketTimeout);
    times.push_back((seconds_now() - begin_time) / 2);
  }
  return median(std::move(times));
}

// Converts measured (bytes, seconds), in ascending order of bytes, to a link. The latency is the time of the
// smallest message. Efficiencies are relative to the highest rate and adjusted so that they never decrease
// with size.
LinkSpec link_of(const std::vector<std::pair<double, double>>& seconds) {
  LinkSpec link{.bytes_per_second = 0, .latency = Seconds(seconds.front().second)};
  for (const auto& [bytes, time] : seconds)
    link.bytes_per_second =
        std::max(link.bytes_per_second, bytes / std::max(time - link.latency.value, 1e-9));
  double previous_efficiency = 0;
  for (const auto& [bytes, time] : seconds) {
    if (bytes < 1024) continue;
    const double fraction = bytes / std::max(time - link.latency.value, 1e-9) / link.bytes_per_second;
    previous_efficiency = std::clamp(fraction, std::max(previous_efficiency, 1e-6), 1.0);
    link.efficiency.points.push_back({bytes, previous_efficiency});
  }
  return link;
}

constexpr double kMessageSizes[] = {1, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};

// Returns the seconds of a ring all-reduce of `bytes` bytes.
double ring_seconds(int members, std::size_t bytes) {
  // Member i sends to i + 1.
  std::vector<ProbeSocket> out, in;
  for (int i = 0; i < members; ++i) {
    auto [to, from] = socket_pair();
    out.push_back(std::move(to)), in.push_back(std::move(from));
  }
  const std::size_t part_elements =
      std::max<std::size_t>(1, bytes / sizeof(float) / static_cast<std::size_t>(members));
  std::vector<double> seconds(static_cast<std::size_t>(members));
  const auto run_member = [&](int me) {
    const ProbeSocket &to = out[static_cast<std::size_t>(me)],
                      &from = in[static_cast<std::size_t>((me + members - 1) % members)];
    std::vector<float> data(part_elements * static_cast<std::size_t>(members), 1), received(part_elements);
    const double begin_time = seconds_now();
    for (int ring_step = 0; ring_step < 2 * (members - 1); ++ring_step) {
      const auto part_of = [&](int row) {
        return data.data() + static_cast<std::size_t>((row + 2 * members) % members) * part_elements;
      };
      // Sends and receives concurrently, because otherwise two full sockets would wait for each other.
      std::jthread sender([&] {
        to.send(reinterpret_cast<const char*>(part_of(me - ring_step)), part_elements * sizeof(float));
      });
      if (!from.receive(reinterpret_cast<char*>(received.data()), part_elements * sizeof(float))) return;
      float* const sum = part_of(me - ring_step - 1);
      if (ring_step < members - 1)
        for (std::size_t i = 0; i < part_elements; ++i) sum[i] += received[i];
      else
        std::copy(received.begin(), received.end(), sum);
    }
    seconds[static_cast<std::size_t>(me)] = seconds_now() - begin_time;
  };
  {
    std::vector<std::jthread> threads;
    for (int me = 0; me < members; ++me) threads.emplace_back(run_member, me);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace

LinkSpec probe_loopback(EventSink& events) {
  std::vector<std::pair<double, double>> seconds;
  for (const double size : kMessageSizes) {
    events.report(Progress{"measuring messages", std::ssize(seconds), std::ssize(kMessageSizes), "sizes"});
    seconds.emplace_back(size, message_seconds(static_cast<std::size_t>(size)));
  }
  return link_of(seconds);
}

LinkSpec probe_copies(at::Device from, at::Device to, EventSink& events) {
  std::vector<std::pair<double, double>> seconds;
  const at::Device sync_device = to.is_cuda() ? to : from;
  for (const double size : kMessageSizes) {
    events.report(Progress{"measuring copies", std::ssize(seconds), std::ssize(kMessageSizes), "sizes"});
    const auto options = [&](at::Device device) {
      return at::TensorOptions(at::kByte).device(device).pinned_memory(device.is_cpu() && to.is_cuda());
    };
    const at::Tensor source = at::empty({static_cast<std::int64_t>(size)}, options(from));
    at::Tensor target = at::empty({static_cast<std::int64_t>(size)}, options(to));
    seconds.emplace_back(size, seconds_of(sync_device, [&] { target.copy_(source, true); }));
  }
  return link_of(seconds);
}

std::vector<CollectiveTime> probe_all_reduce(EventSink& events) {
  std::vector<CollectiveTime> result;
  for (const int members : {2, 4})
    for (const double bytes : {65536.0, 16.0 * (1 << 20)}) {
      events.report(Progress{"measuring all-reduces", std::ssize(result), 4, "sizes"});
      std::vector<double> times;
      for (int i = 0; i < 5; ++i) times.push_back(ring_seconds(members, static_cast<std::size_t>(bytes)));
      result.push_back({members, bytes, median(std::move(times))});
    }
  return result;
}

}  // namespace optimus
