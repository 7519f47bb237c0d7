// Implements the JSON format of observation.h. Ranks send observations up a reduction tree in this format,
// and the run folder stores them in it.
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
constexpr std::int64_t kMaxGroups = 100'000, kMaxRanks = 1'000'000, kMaxCount = std::int64_t{1} << 53;
constexpr int kLowestBucket = -2560, kHighestBucket = 65'600;  // for 1e-12 and for the largest double

double amount(const JsonView& view) {
  const double value = view.number();
  if (!(value >= 0) || !std::isfinite(value)) view.refuse("a non-negative number");
  return value;
}

RankValue rank_value_of(const JsonView& view) {
  const std::vector<JsonView> pair = view.elements();
  if (pair.size() != 2) view.refuse("[value, rank]");
  return {amount(pair[0]), static_cast<int>(pair[1].integer(0, kMaxRanks))};
}

OrderedJson json_of(const RankValue& rank_value) {
  return OrderedJson::array({rank_value.value, rank_value.rank});
}

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
  spread.count = view.at("count").integer(1, kMaxRanks), spread.sum = amount(view.at("sum"));
  spread.smallest = rank_value_of(view.at("smallest"));
  const JsonView largest = view.at("largest");
  const std::vector<JsonView> largest_values = largest.elements();
  if (std::ssize(largest_values) != std::min<std::int64_t>(spread.count, Spread::kLargest))
    largest.refuse("one value per rank, up to 16 values");
  for (const JsonView& json_view : largest_values) {
    spread.largest.push_back(rank_value_of(json_view));
    if (spread.largest.back().value > spread.largest.front().value) json_view.refuse("descending values");
  }
  std::int64_t sum_of_counts = 0;
  for (const JsonView& json_view : view.at("buckets").elements()) {
    const std::vector<JsonView> pair = json_view.elements();
    if (pair.size() != 2) json_view.refuse("[bucket, count]");
    const std::int64_t bucket_count = pair[1].integer(1, kMaxRanks);
    if (!spread.buckets
             .emplace(static_cast<int>(pair[0].integer(kLowestBucket, kHighestBucket)), bucket_count)
             .second)
      json_view.refuse("a unique bucket");
    sum_of_counts += bucket_count;
  }
  if (sum_of_counts != spread.count) view.at("buckets").refuse("buckets whose counts add up to `count`");
  return spread;
}

LengthSum lengths_of(const JsonView& view) {
  LengthSum lengths;
  lengths.sequences = view.at("sequences").integer(0, kMaxCount),
  lengths.tokens = view.at("tokens").integer(0, kMaxCount);
  lengths.longest = view.at("longest").integer(0, kMaxCount), lengths.squares = amount(view.at("squares"));
  return lengths;
}

OrderedJson json_of(const BlockTimes& rates) {
  OrderedJson json = OrderedJson::array();
  for (const BlockTime& rate : rates) json.push_back(OrderedJson::array({rate.seconds, rate.predicted}));
  return json;
}

BlockTimes rates_of(const JsonView& view) {
  const std::vector<JsonView> rows = view.elements();
  if (rows.size() != kBlockRoles) view.refuse("[seconds, predicted] for embedding, layers and head");
  BlockTimes rates;
  for (std::size_t role = 0; role < kBlockRoles; ++role) {
    const std::vector<JsonView> pair = rows[role].elements();
    if (pair.size() != 2) rows[role].refuse("[seconds, predicted]");
    rates[role] = {amount(pair[0]), amount(pair[1])};
  }
  return rates;
}

}  // namespace

OrderedJson to_json(const Observation& observation) {
  OrderedJson groups = OrderedJson::array();
  for (const auto& [number, group] : observation.groups) {
    OrderedJson group_json = {{"group", number}};
    for (std::size_t m = 0; m < kMeasures; ++m)
      if (group.spreads[m].count > 0) group_json[text(static_cast<Measure>(m))] = json_of(group.spreads[m]);
    groups.push_back(std::move(group_json));
  }
  return {{"format", "optimus-observation"},
          {"version", kObservationVersion},
          {"step", observation.step},
          {"seconds", observation.seconds},
          {"num_ranks", observation.num_ranks},
          {"lengths",
           {{"sequences", observation.lengths.sequences},
            {"tokens", observation.lengths.tokens},
            {"longest", observation.lengths.longest},
            {"squares", observation.lengths.squares}}},
          {"rates", json_of(observation.rates)},
          {"memory_limit", observation.memory_limit.value},
          {"groups", std::move(groups)}};
}

Observation parse_observation(std::string_view document_text, const std::string& source) {
  const Json document = parse_json(document_text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-observation") json.at("format").refuse("\"optimus-observation\"");
  if (const auto version = json.at("version").integer(); version != kObservationVersion)
    throw UserError("{}: version {} is not supported; this program reads version {}", source, version,
                    kObservationVersion);
  Observation observation;
  observation.step = json.at("step").integer(0, kMaxCount), observation.seconds = amount(json.at("seconds"));
  observation.num_ranks = json.at("num_ranks").integer(0, kMaxRanks);
  observation.lengths = lengths_of(json.at("lengths"));
  observation.rates = rates_of(json.at("rates"));
  observation.memory_limit = Bytes(json.at("memory_limit").integer(0, kMaxCount));
  for (const JsonView& json_view : json.at("groups").elements()) {
    const auto number = static_cast<int>(json_view.at("group").integer(0, kMaxGroups));
    const auto [place, is_new] = observation.groups.emplace(number, GroupStep{});
    if (!is_new) json_view.at("group").refuse("a unique group");
    for (std::size_t m = 0; m < kMeasures; ++m)
      if (const auto spread = json_view.find(text(static_cast<Measure>(m))))
        place->second.spreads[m] = spread_of(*spread);
  }
  return observation;
}

}  // namespace optimus
