// Implements condition_timeline.h: the file format.
#include <climits>

#include "adapt/condition_timeline.h"
#include "base/error.h"

namespace optimus {
namespace {

constexpr int kTimelineVersion = 1;
constexpr double kMaxSeconds = 1e9;
constexpr std::size_t kMaxEntries = 100'000;

double number_between(const JsonView& view, double min_value, double max_value) {
  const double value = view.number();
  if (!(value >= min_value && value <= max_value))
    throw UserError("{}: expected {} to {}, got {}", view.location(), min_value, max_value, value);
  return value;
}

TimedCondition parse_condition(const JsonView& view, double length) {
  const std::vector<std::string> keys = {"cause", "where", "factor", "at", "for"};
  view.allow_only(keys);
  TimedCondition timed;
  timed.condition.cause = parse_cause(view.at("cause").text(), view.at("cause").location());
  if (timed.condition.cause > Cause::cluster) view.at("cause").refuse("device, link, host or cluster");
  timed.condition.location = static_cast<int>(view.integer_or("where", 0));
  timed.condition.factor = number_between(view.at("factor"), 1, 1e6);
  timed.begin = number_between(view.at("at"), 0, length);
  timed.length = number_between(view.at("for"), 0, kMaxSeconds);
  return timed;
}

TimedLoss parse_loss(const JsonView& view, double length) {
  const std::vector<std::string> keys = {"where", "at", "for"};
  view.allow_only(keys);
  return {static_cast<int>(view.at("where").integer(0, INT_MAX)), number_between(view.at("at"), 0, length),
          number_between(view.at("for"), 0, kMaxSeconds)};
}

std::vector<JsonView> entries(const JsonView& list, const std::string& source) {
  std::vector<JsonView> elements = list.elements();
  if (elements.size() > kMaxEntries)
    throw UserError("{}: {} has more than {} entries", source, list.location(), kMaxEntries);
  return elements;
}

}  // namespace

bool looks_like_timeline(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

OrderedJson to_json(const ConditionTimeline& timeline) {
  OrderedJson conditions = OrderedJson::array();
  for (const TimedCondition& condition : timeline.conditions)
    conditions.push_back({{"cause", word_of(condition.condition.cause)},
                          {"where", condition.condition.location},
                          {"factor", condition.condition.factor},
                          {"at", condition.begin},
                          {"for", condition.length}});
  OrderedJson json = {{"format", "optimus-conditions"},
                      {"version", kTimelineVersion},
                      {"length", timeline.length},
                      {"conditions", conditions}};
  for (const TimedLoss& timed_loss : timeline.losses)
    json["losses"].push_back(
        {{"where", timed_loss.node}, {"at", timed_loss.begin}, {"for", timed_loss.length}});
  return json;
}

ConditionTimeline parse_timeline(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-conditions") json.at("format").refuse("\"optimus-conditions\"");
  if (const auto version = json.at("version").integer(); version != kTimelineVersion)
    throw UserError("{}: version {} is not supported; this program reads version {}", source, version,
                    kTimelineVersion);
  const std::vector<std::string> keys = {"format", "version", "length", "conditions", "losses"};
  json.allow_only(keys);
  ConditionTimeline timeline;
  timeline.length = number_between(json.at("length"), 1e-3, kMaxSeconds);
  for (const JsonView& json_view : entries(json.at("conditions"), source))
    timeline.conditions.push_back(parse_condition(json_view, timeline.length));
  if (const auto losses = json.find("losses"))
    for (const JsonView& json_view : entries(*losses, source))
      timeline.losses.push_back(parse_loss(json_view, timeline.length));
  return timeline;
}

ConditionTimeline read_timeline(const Path& file) {
  return parse_timeline(read_input_file(file, Bytes(std::int64_t{1} << 28)), file.string());
}

}  // namespace optimus
