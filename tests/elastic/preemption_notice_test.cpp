// Preemption notices: what counts as a notice, and where it is polled.
#include "elastic/preemption_notice.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "store/socket.h"

namespace optimus {
namespace {

// Longer than two polls and the delay after them.
bool appears(const PreemptionNotice& notice) {
  const Deadline deadline = Deadline::after(Seconds(20), "a notice");
  while (!notice.is_given() && !deadline.has_passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return notice.is_given();
}

TEST(PreemptionNotice, ClassifiesResponses) {
  for (const char* body :
       {"TRUE", "TERMINATE_ON_HOST_MAINTENANCE", R"({"action": "terminate", "time": "2026-01-01"})",
        R"({"Events": [{"EventType": "Reboot"}, {"EventType": "Preempt"}]})", "{half"})
    EXPECT_TRUE(is_preemption_notice(200, body)) << body;
  for (const char* body :
       {"", " \n", "FALSE", "NONE", "none\n", R"({"DocumentIncarnation": 1, "Events": []})",
        R"({"Events": [{"EventType": "Freeze"}]})"})
    EXPECT_FALSE(is_preemption_notice(200, body)) << body;
  EXPECT_FALSE(is_preemption_notice(404, "TRUE"));
}

TEST(PreemptionNotice, DetectsFile) {
  const TemporaryFolder folder;
  const Path path = folder / "taken";
  const PreemptionNotice notice(path.string());
  std::this_thread::sleep_for(std::chrono::milliseconds(1600));  // at least one poll
  EXPECT_FALSE(notice.is_given());
  std::ofstream(path) << "soon";
  EXPECT_TRUE(appears(notice));
}

TEST(PreemptionNotice, DetectsUrlResponse) {
  const Socket listener = listen_at(Listening::on_loopback, 0);
  std::atomic<bool> is_taken = false, is_over = false;
  std::string asked;
  std::thread server([&] {
    while (!is_over) {
      pollfd waited{listener.handle(), POLLIN, 0};
      if (::poll(&waited, 1, 50) <= 0) continue;
      Socket one(::accept4(listener.handle(), nullptr, nullptr, SOCK_NONBLOCK));
      const Deadline deadline = Deadline::after(Seconds(2), "a test");
      asked = one.receive_some(4096, deadline).value_or("");
      (void)one.send(is_taken ? "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE"
                              : "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
                     deadline);
    }
  });
  {
    const PreemptionNotice notice("http://127.0.0.1:" + std::to_string(port_of(listener)) +
                                  "/spot/instance-action");
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
    EXPECT_FALSE(notice.is_given());
    is_taken = true;
    EXPECT_TRUE(appears(notice));
  }
  is_over = true;
  server.join();
  EXPECT_EQ(asked.find("GET /spot/instance-action HTTP/1.1\r\n"), 0U);
}

TEST(PreemptionNotice, RejectsInvalidAddresses) {
  for (const char* where : {"https://a/b", "ftp://a", "http://", "http://a:0/x", "http://a:x/"})
    EXPECT_THROW(PreemptionNotice{where}, UserError) << where;
}

}  // namespace
}  // namespace optimus
