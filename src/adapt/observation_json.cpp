// Implements the JSON format of observation.h, which ranks send up the tree and the run's folder stores.
//
//   {"format": "optimus-observation", "version": 1, "step": 412, "seconds": 0.31, "num_ranks": 16,
//    "lengths": {…}, "rates": [[0.1, 0.08], …], "memory_limit": 0,
//    "groups": [{"group": 0,
//                "compute": {"count": 4, "sum": 1.0, "smallest": [0.24, 3], "largest": [[0.26, 1], …],
//                            "buckets": [[-132, 2], …]}, …}]}
#include <cmath>

#include "adapt/observation.h"
#include "base/error.h"

namespace optimus {
namespace {

constexpr int kObservationVersion = 1;
constexpr std::int64_t kMostGroups = 100'000, kMostRanks = 1'000'000, kMostCount = std::int64_t{1} << 53;
constexpr int kLowestBucket = -2560, kHighestBucket = 65'600;  // for 1e-12 and for the largest double

double amount(const JsonView& view) {
  const double value = view.number();
  if (!(value >= 0) || !std::isfinite(value)) view.refuse("a number of at least 0");
  return value;
}

RankValue rank_value_of(const JsonView& view) {
  const std::vector<JsonView> pair = view.elements();
  if (pair.size() != 2) view.refuse("[value, rank]");
  return {amount(pair[0]), static_cast<int>(pair[1].integer(0, kMostRanks))};
}

OrderedJson json_of(const RankValue& one) { return OrderedJson::array({one.value, one.rank}); }

OrderedJson json_of(const Spread& spread) {
  OrderedJson largest = OrderedJson::array(), buckets = OrderedJson::array();
  for (const RankValue& rank_value : spread.largest) largest.push_back(json_of(rank_value));
  for (const auto& [bucket, number] : spread.buckets) buckets.push_back(OrderedJson::array({bucket, number}));
  return {{"count", spread.count},
          {"sum", spread.sum},
          {"smallest", json_of(spread.smallest)},
          {"largest", std::move(largest)},
          {"buckets", std::move(buckets)}};
}

Spread spread_of(const JsonView& view) {
  Spread spread;
  spread.count = view.at("count").integer(1, kMostRanks), spread.sum = amount(view.at("sum"));
  spread.smallest = rank_value_of(view.at("smallest"));
  const JsonView largest = view.at("largest");
  const std::vector<JsonView> observation = largest.elements();
  if (std::ssize(observation) != std::min<std::int64_t>(spread.count, Spread::kLargest))
    largest.refuse("one for each rank, at most 16");
  for (const JsonView& json_view : observation) {
    spread.largest.push_back(rank_value_of(json_view));
    if (spread.largest.back().value > spread.largest.front().value) json_view.refuse("descending values");
  }
  std::int64_t counted = 0;
  for (const JsonView& json_view : view.at("buckets").elements()) {
    const std::vector<JsonView> pair = json_view.elements();
    if (pair.size() != 2) json_view.refuse("[bucket, count]");
    const std::int64_t number = pair[1].integer(1, kMostRanks);
    if (!spread.buckets.emplace(static_cast<int>(pair[0].integer(kLowestBucket, kHighestBucket)), number)
             .second)
      json_view.refuse("each bucket only once");
    counted += number;
  }
  if (counted != spread.count) view.at("buckets").refuse("as many values as `count`");
  return spread;
}

LengthSum lengths_of(const JsonView& view) {
  LengthSum lengths;
  lengths.sequences = view.at("sequences").integer(0, kMostCount),
  lengths.tokens = view.at("tokens").integer(0, kMostCount);
  lengths.longest = view.at("longest").integer(0, kMostCount), lengths.squares = amount(view.at("squares"));
  return lengths;
}

OrderedJson json_of(const BlockRates& rates) {
  OrderedJson all = OrderedJson::array();
  for (const Rate& rate : rates) all.push_back(OrderedJson::array({rate.seconds, rate.predicted}));
  return all;
}

BlockRates rates_of(const JsonView& view) {
  const std::vector<JsonView> all = view.elements();
  if (all.size() != kBlockRoles) view.refuse("[seconds, predicted] of embedding, layers and head");
  BlockRates rates;
  for (std::size_t role = 0; role < kBlockRoles; ++role) {
    const std::vector<JsonView> pair = all[role].elements();
    if (pair.size() != 2) all[role].refuse("[seconds, predicted]");
    rates[role] = {amount(pair[0]), amount(pair[1])};
  }
  return rates;
}

}  // namespace

OrderedJson to_json(const Observation& seen) {
  OrderedJson groups = OrderedJson::array();
  for (const auto& [number, group] : seen.groups) {
    OrderedJson group_json = {{"group", number}};
    for (std::size_t m = 0; m < kMeasures; ++m)
      if (group.spreads[m].count > 0) group_json[text(static_cast<Measure>(m))] = json_of(group.spreads[m]);
    groups.push_back(std::move(group_json));
  }
  return {{"format", "optimus-observation"},
          {"version", kObservationVersion},
          {"step", seen.step},
          {"seconds", seen.seconds},
          {"num_ranks", seen.num_ranks},
          {"lengths",
           {{"sequences", seen.lengths.sequences},
            {"tokens", seen.lengths.tokens},
            {"longest", seen.lengths.longest},
            {"squares", seen.lengths.squares}}},
          {"rates", json_of(seen.rates)},
          {"memory_limit", seen.memory_limit.value},
          {"groups", std::move(groups)}};
}

Observation parse_observation(std::string_view document_text, const std::string& source) {
  const Json document = parse_json(document_text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-observation") json.at("format").refuse("\"optimus-observation\"");
  if (const auto version = json.at("version").integer(); version != kObservationVersion)
    throw UserError("{}: version {}; this program reads version {}", source, version, kObservationVersion);
  Observation observation;
  observation.step = json.at("step").integer(0, kMostCount), observation.seconds = amount(json.at("seconds"));
  observation.num_ranks = json.at("num_ranks").integer(0, kMostRanks);
  observation.lengths = lengths_of(json.at("lengths"));
  observation.rates = rates_of(json.at("rates"));
  observation.memory_limit = Bytes(json.at("memory_limit").integer(0, kMostCount));
  for (const JsonView& json_view : json.at("groups").elements()) {
    const auto number = static_cast<int>(json_view.at("group").integer(0, kMostGroups));
    const auto [place, is_new] = observation.groups.emplace(number, GroupStep{});
    if (!is_new) json_view.at("group").refuse("each group only once");
    for (std::size_t m = 0; m < kMeasures; ++m)
      if (const auto spread = json_view.find(text(static_cast<Measure>(m))))
        place->second.spreads[m] = spread_of(*spread);
  }
  return observation;
}

}  // namespace optimus
