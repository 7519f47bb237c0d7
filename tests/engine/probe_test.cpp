// The tools of the probe. Its measurements differ between machines; bench/prediction_bench.py compares them
// with trainings.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "engine/probe_links.h"
#include "engine/probe_timing.h"

namespace optimus {
namespace {

TEST(Probe, OperandRingAdvancesAndWraps) {
  OperandRing ring(at::arange(1000, at::kFloat));
  const auto first = [&](std::int64_t rows, std::int64_t columns) {
    return ring.next(rows, columns)[0][0].item<float>();
  };
  EXPECT_EQ(first(2, 3), 0);
  EXPECT_EQ(first(10, 20), 128);  // offsets are multiples of 128
  EXPECT_EQ(first(10, 40), 384);
  EXPECT_EQ(first(10, 40), 0);                                                // starts over
  EXPECT_EQ(ring.next(30, 50).sizes(), (std::vector<std::int64_t>{30, 50}));  // larger than the buffer was
}

TEST(Probe, TimesTheCall) {
  int calls = 0;
  EXPECT_GT(seconds_of(at::Device(at::kCPU), [&] { ++calls; }), 0);
  EXPECT_GT(calls, 2);
}

TEST(Probe, LinkProbesReturnPositiveTimes) {
  NullSink events;
  const LinkSpec link = probe_loopback(events);
  validate(link.efficiency, "loopback");
  EXPECT_GT(link.latency.value, 0);
  EXPECT_GT(link.bytes_per_second, 1e6);
  const LinkSpec workers = probe_workers(events);
  validate(workers.efficiency, "workers");
  EXPECT_GT(workers.latency.value, 0);
  EXPECT_GT(workers.bytes_per_second, 1e6);
  const std::vector<CollectiveTime> sums = probe_all_reduce(events);
  ASSERT_EQ(sums.size(), 4u);
  for (const CollectiveTime& sum : sums) EXPECT_GT(sum.seconds, 0) << sum.members << " " << sum.bytes;
}

}  // namespace
}  // namespace optimus
