// Implements time_line.h: the file format.
#include <climits>

#include "adapt/time_line.h"
#include "base/error.h"

namespace optimus {
namespace {

constexpr int kTimeLineVersion = 1;
constexpr double kLongestLine = 1e9;
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
  timed.length = number_between(view.at("for"), 0, kLongestLine);
  return timed;
}

TimedLoss parse_loss(const JsonView& view, double length) {
  const std::vector<std::string> keys = {"where", "at", "for"};
  view.allow_only(keys);
  return {static_cast<int>(view.at("where").integer(0, INT_MAX)), number_between(view.at("at"), 0, length),
          number_between(view.at("for"), 0, kLongestLine)};
}

std::vector<JsonView> entries(const JsonView& list, const std::string& source) {
  std::vector<JsonView> all = list.elements();
  if (all.size() > kMaxEntries)
    throw UserError("{}: {} has more than {} entries", source, list.location(), kMaxEntries);
  return all;
}

}  // namespace

bool looks_like_time_line(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

OrderedJson to_json(const TimeLine& line) {
  OrderedJson all = OrderedJson::array();
  for (const TimedCondition& condition : line.conditions)
    all.push_back({{"cause", word_of(condition.condition.cause)},
                   {"where", condition.condition.location},
                   {"factor", condition.condition.factor},
                   {"at", condition.begin},
                   {"for", condition.length}});
  OrderedJson json = {{"format", "optimus-conditions"},
                      {"version", kTimeLineVersion},
                      {"length", line.length},
                      {"conditions", all}};
  for (const TimedLoss& timed_loss : line.losses)
    json["losses"].push_back(
        {{"where", timed_loss.node}, {"at", timed_loss.begin}, {"for", timed_loss.length}});
  return json;
}

TimeLine parse_time_line(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-conditions") json.at("format").refuse("\"optimus-conditions\"");
  if (const auto version = json.at("version").integer(); version != kTimeLineVersion)
    throw UserError("{}: version {}; this program reads version {}", source, version, kTimeLineVersion);
  const std::vector<std::string> keys = {"format", "version", "length", "conditions", "losses"};
  json.allow_only(keys);
  TimeLine line;
  line.length = number_between(json.at("length"), 1e-3, kLongestLine);
  for (const JsonView& json_view : entries(json.at("conditions"), source))
    line.conditions.push_back(parse_condition(json_view, line.length));
  if (const auto losses = json.find("losses"))
    for (const JsonView& json_view : entries(*losses, source))
      line.losses.push_back(parse_loss(json_view, line.length));
  return line;
}

TimeLine read_time_line(const Path& file) {
  return parse_time_line(read_input_file(file, Bytes(std::int64_t{1} << 28)), file.string());
}

}  // namespace optimus
