#include "comm/flight_log.h"

#include <gtest/gtest.h>

#include <thread>

namespace optimus::test {
namespace {

TEST(FlightLog, KeepsLastEntries) {
  FlightLog log(3, 4);
  for (int i = 0; i < 10; ++i) {
    const std::int64_t number = log.post("send", "letter " + std::to_string(i), "world {0 3}, epoch 0", i);
    EXPECT_EQ(number, i);
    if (i != 8) log.end(number, i == 9 ? FlightState::failed : FlightState::done);
  }
  log.end(2, FlightState::failed);  // no longer in the log
  const std::vector<FlightEntry> entries = log.entries();
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].number, 6);
  EXPECT_EQ(entries[0].operation, "send of letter 6");
  EXPECT_EQ(entries[2].state, FlightState::posted);
  EXPECT_EQ(entries[3].state, FlightState::failed);
  const std::string text = log.text();
  EXPECT_NE(text.find("rank 3 #9"), std::string::npos) << text;
  EXPECT_NE(text.find("send of letter 8, world {0 3}, epoch 0, 8 B: in progress for"), std::string::npos)
      << text;
}

TEST(FlightLog, CanBeReadWhileWritten) {
  FlightLog log(0, 8);
  std::jthread writer([&](std::stop_token stop) {
    while (!stop.stop_requested())
      log.end(log.post("all_reduce", "gradients", "world {0}, epoch 0", 8), FlightState::done);
  });
  std::int64_t last = -1;
  while (last < 1000)
    for (const FlightEntry& entry : log.entries()) {
      EXPECT_EQ(entry.operation, "all_reduce of gradients");
      last = std::max(last, entry.number);
    }
  writer.request_stop();
  EXPECT_GE(log.entries().back().number, last);
}

}  // namespace
}  // namespace optimus::test
