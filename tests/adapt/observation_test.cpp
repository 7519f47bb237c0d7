// Merging of observations and their JSON format.
#include "adapt/observation.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {

int any_of(int low, int high) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1)); }

RankStep random_rank(int rank, int num_groups) {
  RankStep rank_step{.rank = rank, .group = rank % num_groups};
  const auto number = [] { return any_of(0, 4000) / 1024.0; };  // sums of these are exact in any order
  rank_step.seconds = number(), rank_step.data_wait = number(), rank_step.relative_work = any_of(1, 4);
  for (WorkTime& kind : rank_step.kinds) kind = {any_of(0, 9), number(), number()};
  for (LinkTime& link : rank_step.links) link = {static_cast<double>(any_of(0, 2)), number()};
  rank_step.lengths = {1, any_of(1, 99), 7, number()};
  rank_step.memory = Bytes(any_of(0, 1000)), rank_step.memory_limit = Bytes(any_of(0, 1) * 1000);
  // Values are divided by work and by bytes: powers of two keep the results exact.
  if (rank_step.relative_work == 3) rank_step.relative_work = 2;
  return rank_step;
}

RC_GTEST_PROP(Observation, MergeOrderDoesNotMatter, ()) {
  const int ranks = any_of(1, 60), groups = any_of(1, 3);
  Observation whole;
  whole.step = 7;
  std::vector<Observation> parts(static_cast<std::size_t>(any_of(1, 5)));
  for (Observation& part : parts) part.step = 7;
  for (int r = 0; r < ranks; ++r) {
    const RankStep rank_step = random_rank(r, groups);
    whole.add(rank_step);
    parts[static_cast<std::size_t>(any_of(0, static_cast<int>(parts.size()) - 1))].add(rank_step);
  }
  while (parts.size() > 1) {
    const auto from = static_cast<std::size_t>(any_of(1, static_cast<int>(parts.size()) - 1));
    parts[static_cast<std::size_t>(any_of(0, static_cast<int>(from) - 1))].merge(parts[from]);
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(from));
  }
  RC_ASSERT(parts.front() == whole);
  RC_ASSERT(parse_observation(to_json(whole).dump(), "observation") == whole);
}

RC_GTEST_PROP(Observation, SpreadHasSmallestMedianAndLargest, ()) {
  Spread spread;
  std::vector<double> values;
  const int count = any_of(1, 300);
  for (int r = 0; r < count; ++r) {
    values.push_back(std::exp(any_of(-3000, 3000) / 500.0));
    spread.add(values.back(), r);
  }
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  RC_ASSERT(spread.smallest.value == sorted.front());
  RC_ASSERT(values[static_cast<std::size_t>(spread.smallest.rank)] == sorted.front());
  for (std::size_t i = 0; i < spread.largest.size(); ++i) {
    RC_ASSERT(spread.largest[i].value == sorted[sorted.size() - 1 - i]);
    RC_ASSERT(values[static_cast<std::size_t>(spread.largest[i].rank)] == spread.largest[i].value);
  }
  const double median = sorted[(sorted.size() - 1) / 2];
  // Half a bucket: 2^(1/128) = 1.0054.
  RC_ASSERT(std::abs(std::log(spread.median() / median)) < 0.0055);
}

TEST(Observation, SizeDoesNotGrowWithRanks) {
  const auto size_of = [](int ranks) {
    Observation seen;
    for (int r = 0; r < ranks; ++r) {
      RankStep rank_step{.rank = r, .group = r % 4, .seconds = 1};
      rank_step.kinds[1].seconds = 1 + 0.05 * std::sin(r),
      rank_step.links[3] = {1e6, 0.01 * (1 + 0.1 * std::cos(r))};
      seen.add(rank_step);
    }
    return to_json(seen).dump().size();
  };
  // Only the digits of counts and the number of filled buckets grow.
  EXPECT_LT(size_of(16'384) * 5, size_of(1024) * 6);
  EXPECT_LT(size_of(16'384), 64u << 10);
}

// A rank without timed instructions has no computing time, rather than one of zero.
TEST(Observation, UntimedComputingIsAbsent) {
  Observation seen;
  seen.add({.rank = 1, .seconds = 2});
  EXPECT_EQ(seen.groups.at(0).of(Measure::compute).count, 0);
  EXPECT_EQ(seen.num_ranks, 1);
}

TEST(Observation, ParseErrorsNameTheLocation) {
  Observation seen;
  RankStep rank_step{.rank = 1, .seconds = 2};
  rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)].seconds = 1;
  seen.add(rank_step);
  OrderedJson json = to_json(seen);
  const auto message = [&](const OrderedJson& changed) -> std::string {
    try {
      (void)parse_observation(changed.dump(), "seen.json");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(json), "");
  OrderedJson changed = json;
  changed["groups"][0]["compute"]["count"] = 2;
  EXPECT_NE(message(changed).find("largest"), std::string::npos);
  changed = json, changed["seconds"] = -1;
  EXPECT_NE(message(changed).find("seen.json: seconds"), std::string::npos) << message(changed);
  changed = json, changed["version"] = 9;
  EXPECT_NE(message(changed).find("version 9"), std::string::npos);
}

}  // namespace
}  // namespace optimus
