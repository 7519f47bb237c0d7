// The store of a run: answers to its clients, and no answers to unauthenticated clients, garbage, half-open
// connections and connection floods.
#include "store/store_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "base/error.h"
#include "store/key_store.h"
#include "store/store_protocol.h"

namespace optimus {
namespace {

const std::string kToken = "0123456789abcdef";

Deadline within(double seconds) { return Deadline::after(Seconds(seconds), "a test"); }

std::unique_ptr<KeyStore> client_of(const StoreServer& server, const std::string& token = kToken) {
  return value_or_throw(open_store({.port = server.port(), .token = token}, within(10)));
}

Socket raw_connection_to(const StoreServer& server) {
  return value_or_throw(Socket::connect("127.0.0.1", server.port(), within(10)));
}

// The answer of the server to a client that sends these bytes, until the server closes the connection.
std::string answer_to(const StoreServer& server, const std::string& bytes) {
  Socket connection = raw_connection_to(server);
  (void)connection.send(bytes, within(5));
  std::string all;
  while (true) {
    const auto some = connection.receive_some(1000, within(5));
    if (!some) return some.error().why.find("reset") != std::string::npos ? all : "still open: " + all;
    if (some->empty()) return all;
    all += *some;
  }
}

TEST(Store, KeepsValues) {
  const StoreServer server({.token = kToken});
  const auto one = client_of(server), other = client_of(server);
  EXPECT_FALSE(value_or_throw(one->find("a")));
  value_or_throw(one->set("a", std::string("x\0\n\xff", 4)));
  EXPECT_EQ(value_or_throw(other->find("a")), std::string("x\0\n\xff", 4));
  value_or_throw(other->set("a", ""));
  EXPECT_EQ(value_or_throw(one->find("a")), "");
  const std::string large(10'000'000, 'l');
  value_or_throw(one->set("large", large));
  EXPECT_EQ(value_or_throw(other->find("large")), large);
}

TEST(Store, QueriesManyKeysInOneRoundTrip) {
  const StoreServer server({.token = kToken});
  const auto one = client_of(server);
  KeyStore::Query query{{{"a", "1"}, {"b", ""}}, {"b", "c", "a"}};
  using Values = std::vector<std::optional<std::string>>;
  EXPECT_EQ(value_or_throw(one->query(query)), (Values{"", std::nullopt, "1"}));
  query = {{{"a", "2"}}, {}};
  EXPECT_TRUE(value_or_throw(one->query(query)).empty());
  EXPECT_EQ(value_or_throw(one->find("a")), "2");
  EXPECT_TRUE(value_or_throw(one->query({})).empty());
  // More requests than fit into one round trip, with more answer bytes than the server sends before they are
  // read.
  const std::string large(3000, 'l');
  query = {};
  for (int i = 0; i < 3000; ++i) {
    if (i % 2 == 0) query.sets.emplace_back(std::to_string(i), large);
    query.gets.push_back(std::to_string(i));
  }
  const Values found = value_or_throw(one->query(query));
  ASSERT_EQ(found.size(), 3000u);
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i], i % 2 == 0 ? std::optional(large) : std::nullopt) << i;
  query = {{{std::string(5000, 'k'), ""}}, {}};
  EXPECT_FALSE(one->query(query));
  EXPECT_EQ(value_or_throw(one->find("a")), "2");
}

TEST(Store, Counts) {
  const StoreServer server({.token = kToken});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const auto client = client_of(server);
      for (int k = 0; k < 100; ++k) value_or_throw(client->increment("n"));
    });
  for (std::thread& thread : threads) thread.join();
  const auto client = client_of(server);
  EXPECT_EQ(value_or_throw(client->increment("n")), 401);
  value_or_throw(client->set("text", "abc"));
  EXPECT_FALSE(client->increment("text"));
  EXPECT_EQ(value_or_throw(client->find("text")), "abc");
  value_or_throw(client->set("last", "9223372036854775807"));
  EXPECT_FALSE(client->increment("last"));
  value_or_throw(client->set("set", "9"));
  EXPECT_EQ(value_or_throw(client->increment("set")), 10);
  value_or_throw(client->set("set", ""));
  EXPECT_EQ(value_or_throw(client->increment("set")), 1);
}

TEST(Store, WaitsForAKey) {
  const StoreServer server({.token = kToken});
  const auto one = client_of(server), other = client_of(server);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    value_or_throw(other->set("late", "now"));
  });
  EXPECT_EQ(value_or_throw(wait_for_key(*one, "late", within(10), [] {})), "now");
  later.join();
  EXPECT_FALSE(wait_for_key(*one, "never", within(0.05), [] {}));
}

TEST(Store, TokensSeparateRuns) {
  const StoreServer server;
  const auto one = client_of(server, "one"), other = client_of(server, "other");
  value_or_throw(one->set("a", "1"));
  EXPECT_FALSE(value_or_throw(other->find("a")));
}

TEST(Store, RejectsUnauthenticatedClients) {
  const StoreServer server({.token = kToken});
  const auto client = client_of(server);
  value_or_throw(client->set("secret", "value"));
  const std::string greeting(store_protocol::kGreeting);
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), greeting + "\n", greeting + "wrong\n",
        greeting + kToken + "x\n", greeting + kToken.substr(1) + "\n", std::string("\n"),
        std::string("\n\n\n"), std::string(1 << 20, 'g'), std::string(1000, '\0'),
        greeting + std::string(600, 'a')})
    EXPECT_EQ(answer_to(server, bytes), "") << bytes.substr(0, 40);
  EXPECT_FALSE(open_store({.port = server.port(), .token = "wrong"}, within(0.2)));
  EXPECT_EQ(value_or_throw(client->find("secret")), "value");
}

// A greeting may arrive in pieces; the server does not wait for one that does not arrive.
TEST(Store, ClosesSilentConnections) {
  const StoreServer server({.token = kToken});
  Socket slow = raw_connection_to(server), silent = raw_connection_to(server),
         half = raw_connection_to(server);
  const std::string greeting = std::string(store_protocol::kGreeting) + kToken + "\n";
  for (const char byte : greeting) value_or_throw(slow.send(std::string(1, byte), within(5)));
  EXPECT_EQ(value_or_throw(slow.receive(store_protocol::kAccepted.size(), within(5))),
            store_protocol::kAccepted);
  value_or_throw(half.send(greeting.substr(0, 10), within(5)));
  for (Socket* ended : {&silent, &half}) EXPECT_EQ(value_or_throw(ended->receive_some(10, within(5))), "");
}

TEST(Store, RejectsInvalidRequests) {
  const StoreServer server({.token = kToken});
  const std::string greeting = std::string(store_protocol::kGreeting) + kToken + "\n";
  std::string too_long = "s";
  store_protocol::put_size(too_long, 1 << 30);
  store_protocol::put_size(too_long, 1);
  Socket wrong = raw_connection_to(server);
  value_or_throw(wrong.send(greeting, within(5)));
  value_or_throw(wrong.receive(store_protocol::kAccepted.size(), within(5)));
  value_or_throw(wrong.send(too_long, within(5)));
  EXPECT_FALSE(wrong.receive(1, within(5)));
  std::string unknown = greeting + "?";
  store_protocol::put_size(unknown, 1);
  store_protocol::put_size(unknown, 0);
  Socket unknown_operation = raw_connection_to(server);
  value_or_throw(unknown_operation.send(unknown + "k", within(5)));
  EXPECT_EQ(value_or_throw(unknown_operation.receive(4, within(5))).back(), store_protocol::kRejected);
  EXPECT_FALSE(value_or_throw(client_of(server)->find("k")));
}

// Requests whose answers are not read use a bounded amount of memory and do not block other clients.
TEST(Store, UnreadAnswersAreBounded) {
  const StoreServer server({.token = kToken});
  const auto client = client_of(server);
  value_or_throw(client->set("large", std::string(1 << 20, 'l')));
  Socket slow_reader = raw_connection_to(server);
  std::string request = "f";
  store_protocol::put_size(request, 5);
  store_protocol::put_size(request, 0);
  request += "large";
  std::string many = std::string(store_protocol::kGreeting) + kToken + "\n";
  for (int i = 0; i < 500; ++i) many += request;
  value_or_throw(slow_reader.send(many, within(5)));
  EXPECT_EQ(value_or_throw(client->increment("n")), 1);
  value_or_throw(slow_reader.receive(store_protocol::kAccepted.size(), within(5)));
  for (int i = 0; i < 500; ++i)
    EXPECT_EQ(value_or_throw(slow_reader.receive((1 << 20) + store_protocol::kAnswerHeader, within(10)))[0],
              store_protocol::kValue);
}

TEST(Store, SurvivesConnectionFlood) {
  const StoreServer server({.token = kToken});
  const auto client = client_of(server);
  std::vector<Socket> connections;
  // As many connections as the process may open: it contains both ends.
  for (int i = 0; i < 1000; ++i) {
    auto connection = Socket::connect("127.0.0.1", server.port(), within(5));
    if (!connection) break;
    connections.push_back(std::move(*connection));
    if (i % 100 == 0) {
      EXPECT_EQ(value_or_throw(client->increment("n")), i / 100 + 1);
    }
  }
  EXPECT_GT(connections.size(), 200U);
  const auto late = client_of(server);
  const std::int64_t counted = value_or_throw(late->increment("n"));
  EXPECT_EQ(value_or_throw(client->increment("n")), counted + 1);
}

TEST(Store, ReconnectsAfterRestart) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{.token = kToken});
  const auto client = client_of(*server);
  const int port = server->port();
  server.reset();
  EXPECT_FALSE(client->set("a", "b"));
  EXPECT_FALSE(client->find("a"));
  EXPECT_FALSE(Socket::connect("127.0.0.1", port, within(1)));
  // A server that restarts on the same port is used again.
  const StoreServer again({.token = kToken, .port = port});
  EXPECT_TRUE(client->set("a", "b"));
}

TEST(Store, LastWill) {
  const StoreServer server({.token = kToken});
  const auto left = client_of(server);
  auto one = client_of(server), other = client_of(server), third = client_of(server);
  value_or_throw(one->set_last_will("first", "one"));
  value_or_throw(one->set_last_will("end", "one"));
  value_or_throw(other->set_last_will("end", "other"));
  value_or_throw(third->set_last_will("third", "gone"));
  value_or_throw(third->set_last_will("", ""));
  EXPECT_FALSE(value_or_throw(left->find("end")));
  one.reset();
  EXPECT_EQ(value_or_throw(wait_for_key(*left, "end", within(5), [] {})), "one");
  other.reset(), third.reset();
  EXPECT_FALSE(wait_for_key(*left, "third", within(0.1), [] {}));
  EXPECT_EQ(value_or_throw(left->find("end")), "one");
  EXPECT_FALSE(value_or_throw(left->find("first")));
}

TEST(Store, RejectsUsedPort) {
  const StoreServer server({.token = kToken});
  EXPECT_THROW(StoreServer({.token = kToken, .port = server.port()}), RuntimeFailure);
}

TEST(Store, ListensOnLoopbackByDefault) {
  const StoreServer open({.token = kToken, .interface = Listening::everywhere});
  EXPECT_TRUE(Socket::connect("127.0.0.1", open.port(), within(5)));
  const StoreServer closed({.token = kToken});
  // 127.0.0.2 is this machine as well, but not the bound address.
  EXPECT_TRUE(Socket::connect("127.0.0.2", open.port(), within(5)));
  EXPECT_FALSE(Socket::connect("127.0.0.2", closed.port(), within(5)));
}

TEST(Store, Secrets) {
  EXPECT_TRUE(is_same_secret("abc", "abc"));
  EXPECT_TRUE(is_same_secret("", ""));
  for (const char* other : {"", "ab", "abd", "abcd", "Abc"}) {
    EXPECT_FALSE(is_same_secret("abc", other));
    EXPECT_FALSE(is_same_secret(other, "abc"));
  }
}

TEST(Store, Places) {
  EXPECT_EQ(parse_host_port("node1:29400", "x"), std::pair(std::string("node1"), 29400));
  EXPECT_EQ(parse_host_port("[::1]:7", "x"), std::pair(std::string("::1"), 7));
  for (const char* bad : {"", ":", "a:", ":7", "a:0", "a:65536", "a:7x", "a", "[]:7"})
    EXPECT_THROW(parse_host_port(bad, "x"), UserError) << bad;
  const StoreAddress place = parse_store("etcd://h:2379", "t");
  EXPECT_TRUE(place.is_etcd && place.host == "h" && place.port == 2379 && place.token == "t");
  for (const char* bad : {"", "http://h:1", "etcd://", "etcd://h", "etcd:h:1"})
    EXPECT_THROW(parse_store(bad, "t"), UserError) << bad;
}

}  // namespace
}  // namespace optimus
