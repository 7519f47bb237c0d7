// Implements profile_report.h.
#include "report/profile_report.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/text.h"
#include "base/trace_events.h"
#include "simulate/report.h"

namespace optimus {
namespace {

constexpr std::array kLanes = {Lane::compute, Lane::tensor,   Lane::gather,
                               Lane::reduce,  Lane::transfer, Lane::host};

Lane parse_lane(const JsonView& view) {
  for (const Lane lane : kLanes)
    if (view.text() == text(lane)) return lane;
  view.refuse("the name of a lane");
}

OrderedJson sizes_json(const StageMemory& m) {
  return {{"weights", m.weights.value},     {"gradients", m.gradients.value},
          {"optimizer", m.optimizer.value}, {"activations", m.activations.value},
          {"buffers", m.buffers.value},     {"total", m.total.value}};
}

StageMemory parse_sizes(const JsonView& view) {
  const auto bytes = [&](const char* key) { return Bytes(view.at(key).integer(0)); };
  return {bytes("weights"),     bytes("gradients"), bytes("optimizer"),
          bytes("activations"), bytes("buffers"),   bytes("total")};
}

const StagePrediction* stage_of(const std::optional<ExpectedStep>& expected, const RankProfile& rank) {
  if (!expected) return nullptr;
  for (const StagePrediction& stage : expected->step.stages)
    if (stage.pipeline == rank.pipeline && stage.stage == rank.stage) return &stage;
  return nullptr;
}

using Kind = std::pair<Lane, std::string>;

// The predicted seconds for each kind of instruction, on one device of each stage.
std::map<std::pair<int, int>, std::map<Kind, double>> predicted_kinds(const ExpectedStep& expected) {
  std::map<std::pair<int, int>, std::map<Kind, double>> result;
  for (const TracedInstruction& instruction : expected.instructions)
    result[{instruction.pipeline, instruction.stage}][{instruction.lane, instruction.kind}] +=
        instruction.end - instruction.start;
  return result;
}

double mean_seconds(const std::vector<RankProfile>& ranks) {
  double sum = 0, count = 0;
  for (const RankProfile& rank : ranks)
    for (const ProfiledStep& step : rank.steps) sum += step.end - step.start, ++count;
  return count > 0 ? sum / count : 0;
}

std::string seconds_or_dash(const std::optional<double>& seconds) {
  return seconds ? text(Seconds(*seconds)) : std::string("-");
}

// A table with the predicted and measured memory of the rank that uses the most memory.
std::string memory_text(const std::vector<RankProfile>& ranks, const std::optional<ExpectedStep>& expected) {
  const auto fullest = std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.memory.total < b.memory.total;
  });
  const StageMemory& m = fullest->memory;
  const StagePrediction* stage = stage_of(expected, *fullest);
  TextTable table({fmt::format("memory of rank {}", fullest->rank), "predicted", "measured"});
  const auto row = [&](const char* name, Bytes measured, Bytes predicted) {
    table.row({name, stage == nullptr ? "-" : text(predicted), text(measured)});
  };
  const StageMemory p = stage == nullptr ? StageMemory{} : stage->memory;
  row("weights", m.weights, p.weights), row("gradients", m.gradients, p.gradients);
  row("optimizer", m.optimizer, p.optimizer);
  row("activations and buffers", m.activations + m.buffers, p.activations + p.buffers);
  row("total", m.total, p.total);
  table.row({"process peak", "-", text(fullest->resident)});
  return table.text();
}

// Merges overlapping spans and sorts them.
std::vector<std::pair<double, double>> merge_spans(std::vector<std::pair<double, double>> spans) {
  std::sort(spans.begin(), spans.end());
  std::vector<std::pair<double, double>> result;
  for (const auto& [start, end] : spans) {
    if (!result.empty() && start <= result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.emplace_back(start, end);
  }
  return result;
}

}  // namespace

OrderedJson profile_json(const RankProfile& profile) {
  OrderedJson json = {{"rank", profile.rank},
                      {"host", profile.host},
                      {"device", profile.device},
                      {"pipeline", profile.pipeline},
                      {"stage", profile.stage},
                      {"memory_bytes", sizes_json(profile.memory)},
                      {"resident_bytes", profile.resident.value}};
  json["steps"] = OrderedJson::array(), json["instructions"] = OrderedJson::array();
  for (const ProfiledStep& step : profile.steps)
    json["steps"].push_back({{"step", step.step}, {"start", step.start}, {"end", step.end}});
  for (const TracedInstruction& instruction : profile.instructions)
    json["instructions"].push_back({{"lane", text(instruction.lane)},
                                    {"name", instruction.name},
                                    {"kind", instruction.kind},
                                    {"start", instruction.start},
                                    {"end", instruction.end}});
  return json;
}

RankProfile parse_rank_profile(const Json& json, const std::string& source) {
  const JsonView view(json, source);
  RankProfile profile;
  profile.rank = static_cast<int>(view.at("rank").integer(0, 1 << 20));
  profile.host = view.at("host").text(), profile.device = view.at("device").text();
  profile.pipeline = static_cast<int>(view.at("pipeline").integer(0, 1 << 20));
  profile.stage = static_cast<int>(view.at("stage").integer(0, 1 << 20));
  profile.memory = parse_sizes(view.at("memory_bytes"));
  profile.resident = Bytes(view.at("resident_bytes").integer(0));
  for (const JsonView& step : view.at("steps").elements())
    profile.steps.push_back({step.at("step").integer(), step.at("start").number(), step.at("end").number()});
  for (const JsonView& json_view : view.at("instructions").elements())
    profile.instructions.push_back({profile.pipeline, profile.stage, parse_lane(json_view.at("lane")),
                                    json_view.at("name").text(), json_view.at("kind").text(),
                                    json_view.at("start").number(), json_view.at("end").number()});
  return profile;
}

std::vector<ComparedKind> compare_kinds(const std::vector<RankProfile>& ranks, const Plan& plan,
                                        const std::optional<ExpectedStep>& expected) {
  ensure(!ranks.empty(), "profile of a plan for {} devices: expected at least one rank", num_devices(plan));
  std::map<Kind, double> measured, predicted;
  const auto predicted_by_stage =
      expected ? predicted_kinds(*expected) : std::map<std::pair<int, int>, std::map<Kind, double>>{};
  const auto count = static_cast<double>(ranks.size());
  for (const RankProfile& rank : ranks) {
    const auto steps = static_cast<double>(std::max<std::size_t>(1, rank.steps.size()));
    for (const TracedInstruction& instruction : rank.instructions)
      measured[{instruction.lane, instruction.kind}] += (instruction.end - instruction.start) / steps / count;
    const auto stage = predicted_by_stage.find({rank.pipeline, rank.stage});
    if (stage == predicted_by_stage.end()) continue;
    for (const auto& [kind, seconds] : stage->second) predicted[kind] += seconds / count;
  }
  std::vector<ComparedKind> result;
  for (const auto& [kind, seconds] : measured) {
    const auto it = predicted.find(kind);
    result.push_back(
        {kind.second, kind.first, seconds, it == predicted.end() ? std::nullopt : std::optional(it->second)});
  }
  for (const auto& [kind, seconds] : predicted)
    if (!measured.contains(kind)) result.push_back({kind.second, kind.first, 0, seconds});
  std::sort(result.begin(), result.end(), [](const ComparedKind& a, const ComparedKind& b) {
    return a.lane != b.lane ? a.lane < b.lane : a.measured > b.measured;
  });
  return result;
}

std::optional<double> overlap(const RankProfile& profile) {
  std::vector<std::pair<double, double>> computations, communications;
  for (const TracedInstruction& instruction : profile.instructions) {
    if (instruction.lane == Lane::host || instruction.end <= instruction.start) continue;
    (instruction.lane == Lane::compute ? computations : communications)
        .emplace_back(instruction.start, instruction.end);
  }
  computations = merge_spans(std::move(computations));
  double total = 0, overlapped = 0;
  for (const auto& [start, end] : communications) {
    total += end - start;
    auto it = std::upper_bound(computations.begin(), computations.end(), std::pair{start, start});
    if (it != computations.begin()) --it;
    for (; it != computations.end() && it->first < end; ++it)
      overlapped += std::max(0.0, std::min(end, it->second) - std::max(start, it->first));
  }
  return total > 0 ? std::optional(overlapped / total) : std::nullopt;
}

std::string comparison_text(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected) {
  TextTable table({"per step and device", "lane", "predicted", "measured"});
  for (const ComparedKind& compared_kind : compare_kinds(ranks, plan, expected))
    table.row({compared_kind.kind, text(compared_kind.lane), seconds_or_dash(compared_kind.predicted),
               compared_kind.measured > 0 ? text(Seconds(compared_kind.measured)) : "-"});
  table.row({"step", "", expected ? text(Seconds(expected->step.seconds)) : "-",
             text(Seconds(mean_seconds(ranks)))});
  std::string result = table.text() + memory_text(ranks, expected);
  if (expected) result += fmt::format("predicted from {}\n", expected->by);
  if (const std::optional<double> overlapped = overlap(ranks.front()))
    result += fmt::format("rank {} computed during {} of its communication\n", ranks.front().rank,
                          percent(*overlapped));
  return result;
}

OrderedJson comparison_json(const std::vector<RankProfile>& ranks, const Plan& plan,
                            const std::optional<ExpectedStep>& expected) {
  OrderedJson json = {{"predicted_by", expected ? OrderedJson(expected->by) : OrderedJson()},
                      {"step_seconds",
                       {{"predicted", expected ? OrderedJson(expected->step.seconds) : OrderedJson()},
                        {"measured", mean_seconds(ranks)}}}};
  json["instructions"] = OrderedJson::array(), json["ranks"] = OrderedJson::array();
  for (const ComparedKind& compared_kind : compare_kinds(ranks, plan, expected))
    json["instructions"].push_back(
        {{"kind", compared_kind.kind},
         {"lane", text(compared_kind.lane)},
         {"predicted", compared_kind.predicted ? OrderedJson(*compared_kind.predicted) : OrderedJson()},
         {"measured", compared_kind.measured}});
  for (const RankProfile& rank : ranks) {
    const StagePrediction* stage = stage_of(expected, rank);
    const std::optional<double> overlapped = overlap(rank);
    json["ranks"].push_back({{"rank", rank.rank},
                             {"host", rank.host},
                             {"device", rank.device},
                             {"overlap", overlapped ? OrderedJson(*overlapped) : OrderedJson()},
                             {"memory_bytes",
                              {{"predicted", stage == nullptr ? OrderedJson() : sizes_json(stage->memory)},
                               {"measured", sizes_json(rank.memory)}}},
                             {"resident_bytes", rank.resident.value}});
  }
  return json;
}

std::string profile_trace(const std::vector<RankProfile>& ranks, const OrderedJson& comparison) {
  TraceEvents trace;
  std::size_t num_traced = 0;
  for (const RankProfile& rank : ranks) {
    num_traced += rank.instructions.size();
    if (num_traced > kMaxTracedInstructions && rank.rank != ranks.front().rank) break;
    const auto process = static_cast<std::size_t>(rank.rank);
    trace.name_process(process, fmt::format("rank {} ({} on {})", rank.rank, rank.device, rank.host));
    trace.name_track(process, 0, "steps");
    for (const ProfiledStep& step : rank.steps)
      trace.span(fmt::format("step {}", step.step), process, 0, step.start, step.end);
    std::set<Lane> named_lanes;
    for (const TracedInstruction& instruction : rank.instructions) {
      const std::size_t track = 1 + static_cast<std::size_t>(instruction.lane);
      if (named_lanes.insert(instruction.lane).second)
        trace.name_track(process, track, text(instruction.lane));
      trace.span(instruction.name, process, track, instruction.start, instruction.end);
    }
  }
  return trace.text({{"profile", comparison}});
}

}  // namespace optimus
