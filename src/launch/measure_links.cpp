// Implements measure_links.h.
#include "launch/measure_links.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "store/socket.h"
#include "store/store_server.h"

namespace optimus {
namespace {

constexpr std::size_t kMessageSizes[] = {1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24};
constexpr std::size_t kFirstLarge = 1 << 20;
constexpr int kMaxRepeats = 20;
constexpr std::size_t kSizeText = 8;  // digits of the size that precedes each message

std::string listener_key(const LinkMeasurement& measurement, int host, int round) {
  return fmt::format("{}links/at/{}/{}", measurement.prefix, round, host);
}
std::string pair_key(const LinkMeasurement& measurement, int first, int round) {
  return fmt::format("{}links/pair/{}/{}", measurement.prefix, round, first);
}

// Reads and discards bytes.
Outcome<void> skip(Socket& socket, std::size_t size, const Deadline& deadline) {
  while (size > 0) {
    const Outcome<std::string> piece = socket.receive_some(size, deadline);
    if (!piece) return tl::unexpected(piece.error());
    if (piece->empty()) return failure("the other host closed the connection");
    size -= piece->size();
  }
  return {};
}

// Sends a message and waits for its echo. Returns the round-trip time in seconds.
Outcome<double> exchange(Socket& socket, const std::string& message, const Deadline& deadline) {
  const auto begin_time = Deadline::Clock::now();
  if (auto sent = socket.send(fmt::format("{:08}", message.size()), deadline); !sent)
    return tl::unexpected(sent.error());
  if (auto sent = socket.send(message, deadline); !sent) return tl::unexpected(sent.error());
  if (auto received = skip(socket, message.size(), deadline); !received)
    return tl::unexpected(received.error());
  return std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
}

// Sends as many messages as possible within `budget` and returns the seconds of the fastest one, because
// other load on the hosts only slows messages down. Returns nullopt if `budget` is too small for one message.
Outcome<std::optional<double>> message_time(Socket& socket, std::size_t size, Seconds budget, double expected,
                                            const Deadline& deadline) {
  if (expected > budget.value) return std::nullopt;
  const std::string message(size, 'x');
  const Deadline size_deadline = Deadline::after(Seconds(budget.value / 2), "messages of one size");
  std::optional<double> fastest;
  for (int repeat = 0; repeat == 0 || (repeat < kMaxRepeats && !size_deadline.has_passed()); ++repeat) {
    const Outcome<double> seconds = exchange(socket, message, deadline);
    if (!seconds) return tl::unexpected(seconds.error());
    fastest = std::min(fastest.value_or(*seconds / 2), *seconds / 2);
  }
  return fastest;
}

Outcome<std::vector<MessageTime>> measure_pair(Socket& socket, Seconds budget) {
  const Deadline deadline = Deadline::after(Seconds(budget.value + 10), "messages between two hosts");
  const Deadline pair_deadline = Deadline::after(budget, "a pair's time");
  std::vector<MessageTime> times;
  for (const std::size_t size : kMessageSizes) {
    // The expected round-trip time, extrapolated from the previous size. This is inaccurate for small
    // messages, so they are not limited.
    const double expected = size <= kFirstLarge || times.empty()
                                ? 0
                                : 2 * times.back().seconds * static_cast<double>(size) / times.back().bytes;
    const double remaining = pair_deadline.remaining().value;
    const auto seconds = message_time(socket, size, Seconds(size < kFirstLarge ? remaining / 8 : remaining),
                                      expected, deadline);
    if (!seconds) return tl::unexpected(seconds.error());
    if (!*seconds) break;
    times.push_back({static_cast<double>(size), **seconds});
    if (pair_deadline.has_passed() && times.size() >= 2) break;
  }
  if (auto published = socket.send(fmt::format("{:08}", 0), deadline); !published)
    return tl::unexpected(published.error());
  return times;
}

// Runs on the other host of the pair: sends every message back until it receives a message of size 0.
Outcome<void> echo_messages(Socket& socket, Seconds budget) {
  const Deadline deadline = Deadline::after(Seconds(budget.value + 10), "messages between two hosts");
  while (true) {
    const Outcome<std::string> text = socket.receive(kSizeText, deadline);
    if (!text) return tl::unexpected(text.error());
    const std::size_t size = std::strtoul(text->c_str(), nullptr, 10);
    if (size == 0) return {};
    if (size > *std::rbegin(kMessageSizes))
      return failure("a message of {} bytes exceeds the maximum size", size);
    if (auto received = skip(socket, size, deadline); !received) return received;
    if (auto sent = socket.send(std::string(size, 'x'), deadline); !sent) return sent;
  }
}

Outcome<Socket> accept_connection(const Socket& listener, const Deadline& deadline) {
  while (!deadline.has_passed()) {
    pollfd poll_entry{listener.handle(), POLLIN, 0};
    if (::poll(&poll_entry, 1, 50) <= 0) continue;
    Socket socket(::accept4(listener.handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.is_open()) return socket;
  }
  return failure("timeout while waiting for {} to connect", deadline.name());
}

// Listens on a separate port and accepts a connection only from the partner.
Outcome<void> serve_partner(const LinkMeasurement& measurement, int round) {
  const Deadline deadline = Deadline::after(measurement.partner_timeout, "the other host of a pair");
  const Socket listener =
      listen_at(is_loopback(measurement.address) ? Listening::on_loopback : Listening::everywhere, 0);
  const auto published = measurement.store.set(listener_key(measurement, measurement.host, round),
                                               fmt::format("{}:{}", measurement.address, port_of(listener)));
  if (!published) return published;
  while (true) {
    Outcome<Socket> socket = accept_connection(listener, deadline);
    if (!socket) return tl::unexpected(socket.error());
    const Outcome<std::string> secret =
        socket->receive(measurement.secret.size(), Deadline::after(Seconds(2), "the secret of a connection"));
    if (secret && is_same_secret(*secret, measurement.secret))
      return echo_messages(*socket, measurement.pair_budget);
  }
}

Outcome<std::vector<MessageTime>> measure_partner(const LinkMeasurement& measurement, int partner,
                                                  int round) {
  const Deadline deadline = Deadline::after(measurement.partner_timeout, "the other host of a pair");
  const Outcome<std::string> partner_address =
      wait_for_key(measurement.store, listener_key(measurement, partner, round), deadline, [] {});
  if (!partner_address) return tl::unexpected(partner_address.error());
  const auto [host, port] = parse_host_port(*partner_address, "the address of the other host");
  Outcome<Socket> socket = Socket::connect(host, port, deadline);
  if (!socket) return failure("{}: {}", *partner_address, socket.error().why);
  if (auto sent = socket->send(measurement.secret, deadline); !sent) return tl::unexpected(sent.error());
  return measure_pair(*socket, measurement.pair_budget);
}

std::string times_text(const Outcome<std::vector<MessageTime>>& times) {
  Json json;
  if (!times) json["why"] = times.error().why;
  json["times"] = Json::array();
  if (times)
    for (const MessageTime& message_time : *times)
      json["times"].push_back({message_time.bytes, message_time.seconds});
  return json.dump();
}

PairTimes parse_times(int first, int second, const std::string& text) {
  const Json json = parse_json(text, "a pair's times");
  const JsonView view(json, "a pair's times");
  PairTimes pair{first, second, {}, {}};
  for (const JsonView& json_view : view.at("times").elements()) {
    const std::vector<JsonView> fields = json_view.elements();
    if (fields.size() != 2) json_view.refuse("bytes and seconds");
    pair.times.push_back({fields[0].number(), fields[1].number()});
    if (!(pair.times.back().bytes >= 1 && pair.times.back().seconds > 0))
      json_view.refuse("bytes and seconds");
  }
  if (pair.times.size() < 2) pair.why = json.contains("why") ? view.at("why").text() : "too slow to measure";
  return pair;
}

}  // namespace

int num_link_rounds(int num_hosts) {
  int rounds = 0;
  while ((1 << rounds) < num_hosts) ++rounds;
  return rounds;
}

std::optional<int> partner_in_round(int host, int round, int num_hosts) {
  const int partner = host ^ (1 << round);
  return partner < num_hosts ? std::optional(partner) : std::nullopt;
}

LinkSpec link_from_messages(const std::vector<MessageTime>& times) {
  ensure(times.size() >= 2, "expected at least 2 message sizes, got {}", times.size());
  const MessageTime &last = times.back(), &second_last = times[times.size() - 2];
  LinkSpec link{.bytes_per_second = 0, .latency = Seconds(times.front().seconds)};
  const double extra_seconds = last.seconds - second_last.seconds;
  link.bytes_per_second = extra_seconds > 0 ? (last.bytes - second_last.bytes) / extra_seconds
                                            : last.bytes / std::max(last.seconds, 1e-9);
  double efficiency = 1e-6;
  for (const MessageTime& message_time : times) {
    if (message_time.bytes < 1024) continue;
    const double fraction = message_time.bytes / std::max(message_time.seconds - link.latency.value, 1e-9) /
                            link.bytes_per_second;
    efficiency = std::clamp(fraction, efficiency, 1.0);
    link.efficiency.points.push_back({message_time.bytes, efficiency});
  }
  return link;
}

void measure_own_links(const LinkMeasurement& measurement) {
  for (int round = 0; round < num_link_rounds(measurement.num_hosts); ++round) {
    const std::optional<int> partner = partner_in_round(measurement.host, round, measurement.num_hosts);
    if (!partner) continue;
    if (*partner < measurement.host) {
      (void)serve_partner(measurement, round);  // the other end records the result
    } else {
      const auto times = measure_partner(measurement, *partner, round);
      // If the store is unreachable, collect_pairs() reports it.
      (void)measurement.store.set(pair_key(measurement, measurement.host, round), times_text(times));
    }
  }
}

std::vector<PairTimes> collect_pairs(const LinkMeasurement& measurement, const Deadline& deadline) {
  std::vector<PairTimes> pairs;
  for (int round = 0; round < num_link_rounds(measurement.num_hosts); ++round)
    for (int host = 0; host < measurement.num_hosts; ++host) {
      const std::optional<int> partner = partner_in_round(host, round, measurement.num_hosts);
      if (!partner || *partner < host) continue;
      const auto recorded_times =
          wait_for_key(measurement.store, pair_key(measurement, host, round), deadline, [] {});
      pairs.push_back(recorded_times ? parse_times(host, *partner, *recorded_times)
                                     : PairTimes{host, *partner, {}, recorded_times.error().why});
    }
  return pairs;
}

namespace {

LinkSpec fastest_link_of(int host, const std::string& name, const std::vector<PairTimes>& pairs) {
  std::optional<LinkSpec> fastest_link;
  std::string reason = "there is no other host";
  for (const PairTimes& pair : pairs) {
    if (pair.first != host && pair.second != host) continue;
    if (pair.times.size() < 2) {
      reason = pair.why;
      continue;
    }
    LinkSpec link = link_from_messages(pair.times);
    if (!fastest_link || link.bytes_per_second > fastest_link->bytes_per_second)
      fastest_link = std::move(link);
  }
  if (!fastest_link) throw RuntimeFailure("no link of host {} could be measured: {}", name, reason);
  return *fastest_link;
}

// Tolerance for measurement noise. If the bandwidths of two hosts differ by a larger ratio, the hosts belong
// to different groups.
constexpr double kSimilarityRatio = 1.2;
bool are_similar(const NodeGroup& group, const ProbedHost& host, const LinkSpec& link) {
  const double ratio = group.network.nic.bytes_per_second / link.bytes_per_second;
  return group.devices_per_node == host.num_devices && ratio < kSimilarityRatio &&
         ratio > 1 / kSimilarityRatio;
}

}  // namespace

HardwareProfile cluster_from_pairs(const HardwareProfile& node, const std::vector<ProbedHost>& hosts,
                                   const std::vector<PairTimes>& pairs) {
  HardwareProfile cluster = node;
  cluster.groups.clear(), cluster.name = fmt::format("{} hosts", hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const LinkSpec link = fastest_link_of(static_cast<int>(i), hosts[i].name, pairs);
    if (!cluster.groups.empty() && are_similar(cluster.groups.back(), hosts[i], link)) {
      cluster.groups.back().num_devices += hosts[i].num_devices;
      continue;
    }
    NodeGroup group = node.groups.front();
    group.num_devices = group.devices_per_node = group.devices_per_domain = hosts[i].num_devices;
    group.network = {.nics_per_node = 1, .nic = link};
    cluster.groups.push_back(group);
  }
  validate(cluster, "the measured hosts");
  return cluster;
}

}  // namespace optimus
