// Any bytes sent to a run's store, by an unauthenticated client and by a client with the token. The store
// continues to serve other clients, does not answer the unauthenticated client, and answers the other one in
// its protocol.
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "store/key_store.h"
#include "store/store_protocol.h"
#include "store/store_server.h"

namespace {

using namespace optimus;

constexpr std::string_view kToken = "0123456789abcdef";

Deadline soon() { return Deadline::after(Seconds(5), "the store"); }

// Everything that the store sends until it closes the connection.
std::string answers_to(const StoreServer& server, std::string_view bytes) {
  Socket client = value_or_throw(Socket::connect("127.0.0.1", server.port(), soon()));
  (void)client.send(bytes, soon());  // the store may close the connection before the end
  ::shutdown(client.handle(), SHUT_WR);
  std::string all;
  while (true) {
    const auto some = client.receive_some(1 << 16, soon());
    if (!some || some->empty()) return all;
    all += *some;
  }
}

// A connection reset loses data in flight, so the last answer may be truncated.
void expect_answers(std::string_view said) {
  using namespace store_protocol;
  if (said.substr(0, kAccepted.size()) != kAccepted.substr(0, said.size())) std::abort();
  said.remove_prefix(std::min(said.size(), kAccepted.size()));
  while (said.size() >= kAnswerHeader) {
    if (said[0] != kValue && said[0] != kNothing && said[0] != kRejected) std::abort();
    const std::size_t size = kAnswerHeader + size_at(said, 1);
    if (size > said.size()) return;
    said.remove_prefix(size);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const StoreServer server({.token = std::string(kToken)});
  static const auto honest =
      value_or_throw(open_store({.port = server.port(), .token = std::string(kToken)}, soon()));
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  value_or_throw(honest->set("kept", "value"));
  // Fuzzers do not guess the token unless a seed contains it.
  if (bytes.find(kToken) == std::string::npos && !answers_to(server, bytes).empty()) std::abort();
  expect_answers(
      answers_to(server, std::string(store_protocol::kGreeting) + std::string(kToken) + "\n" + bytes));
  value_or_throw(honest->set("kept", "another"));
  if (value_or_throw(honest->find("kept")) != "another") std::abort();
  return 0;
}
