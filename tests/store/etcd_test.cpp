// Answers of an etcd server and of other processes, received through a socket. tests/cli uses a real server.
#include <gtest/gtest.h>
#include <poll.h>
#include <rapidcheck.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "base/json.h"
#include "store/http.h"
#include "store/key_store.h"

namespace optimus {
namespace {

Deadline timeout(double seconds = 5) { return Deadline::after(Seconds(seconds), "a test"); }

// Two connected sockets.
std::pair<Socket, Socket> connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

Outcome<HttpResponse> read_of(const std::string& bytes) {
  auto [server, client] = connected();
  std::thread sender([&, to = std::move(server)]() mutable { (void)to.send(bytes, timeout()); });
  auto answer = read_http_response(client, timeout());
  client = Socket();
  sender.join();
  return answer;
}

TEST(Http, Answers) {
  const auto plain = read_of("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->status, 200);
  EXPECT_EQ(plain->body, "hello");
  const auto pieces = read_of(
      "HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n");
  ASSERT_TRUE(pieces);
  EXPECT_EQ(pieces->status, 400);
  EXPECT_EQ(pieces->body, "abc0123456789");
}

TEST(Http, RejectsInvalidResponses) {
  for (const std::string& bytes :
       {std::string(), std::string("HTTP/1.1 200 OK\r\n"), std::string("SSH-2.0-x\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
        std::string("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), std::string(1 << 20, 'g'),
        "HTTP/1.1 200 OK\r\n" + std::string(100000, 'a') + ": b\r\n\r\n",
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab")})
    EXPECT_FALSE(read_of(bytes)) << bytes.substr(0, 60);
}

TEST(Http, Base64) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
  EXPECT_FALSE(from_base64("a b"));
  EXPECT_TRUE(
      rc::check([](const std::string& bytes) { RC_ASSERT(*from_base64(to_base64(bytes)) == bytes); }));
}

// Answers every request with the same bytes.
class FakeEtcd {
 public:
  explicit FakeEtcd(std::string answer)
      : answer_(std::move(answer)),
        listener_(listen_at(Listening::on_loopback, 0)),
        thread_([this] { run(); }) {}
  ~FakeEtcd() {
    is_over_ = true;
    thread_.join();
  }
  int port() const { return port_of(listener_); }

 private:
  void run() {
    std::vector<Socket> open;
    while (!is_over_) {
      std::vector<pollfd> files = {{listener_.handle(), POLLIN, 0}};
      for (const Socket& socket : open) files.push_back({socket.handle(), POLLIN, 0});
      ::poll(files.data(), files.size(), 20);
      Socket next(::accept4(listener_.handle(), nullptr, nullptr, SOCK_NONBLOCK));
      if (next.is_open()) open.push_back(std::move(next));
      for (std::size_t i = 1; i < files.size(); ++i) {
        char block[4096];
        if (files[i].revents != 0 && ::recv(files[i].fd, block, sizeof block, 0) > 0)
          (void)open[i - 1].send(answer_, timeout());
      }
    }
  }
  const std::string answer_;
  Socket listener_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

std::string http(const std::string& body) {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

Outcome<std::optional<std::string>> found_at(const std::string& answer) {
  const FakeEtcd etcd(answer);
  auto store = open_etcd_store({.port = etcd.port(), .token = "t", .is_etcd = true}, timeout(1));
  if (!store) return tl::unexpected(store.error());
  return (*store)->find("a");
}

TEST(Etcd, Answers) {
  EXPECT_EQ(value_or_throw(found_at(http(R"({"kvs": [{"value": "Zg=="}], "count": "1"})"))), "f");
  EXPECT_EQ(value_or_throw(found_at(http(R"({"kvs": [{"key": "Zg=="}], "count": "1"})"))), "");
  EXPECT_FALSE(value_or_throw(found_at(http(R"({"header": {}})"))));
}

TEST(Etcd, Garbage) {
  for (const std::string& answer :
       {std::string("garbage\r\n\r\n"), http("garbage"), http("[]"), http(R"({"kvs": 3})"),
        http(R"({"kvs": [3]})"), http(R"({"kvs": [{"value": "?"}]})"), http(R"({"kvs": [{"value": 1}]})"),
        std::string("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), std::string(1 << 20, '\n')})
    EXPECT_FALSE(found_at(answer)) << answer.substr(0, 60);
}

}  // namespace
}  // namespace optimus
