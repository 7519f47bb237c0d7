// Trace events are valid JSON regardless of the characters in their names.
#include "base/trace_events.h"

#include <gtest/gtest.h>

namespace optimus {
namespace {

TEST(TraceEvents, ProducesJsonWithMicroseconds) {
  TraceEvents trace;
  trace.name_process(3, "rank 3 on \"host\"\n");
  trace.name_track(3, 1, "compute");
  trace.span("a\\b \xff", 3, 1, 0.5, 0.75);
  trace.span("backwards", 3, 1, 1, 0.5);
  const Json json = Json::parse(trace.text({{"more", {1, 2}}}));
  EXPECT_EQ(json.at("more").size(), 2U);
  const Json& events = json.at("traceEvents");
  EXPECT_EQ(events.at(0).at("args").at("name"), "rank 3 on \"host\"\n");
  EXPECT_EQ(events.at(1).at("tid"), 1);
  EXPECT_EQ(events.at(2).at("ts"), 500'000.0);
  EXPECT_EQ(events.at(2).at("dur"), 250'000.0);
  EXPECT_EQ(events.at(3).at("dur"), 0.0);
}

}  // namespace
}  // namespace optimus
