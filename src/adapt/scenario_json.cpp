// The file of a time line: scenario.h.
#include <cmath>

#include "adapt/scenario.h"
#include "base/error.h"

namespace optimus {
namespace {

constexpr int kTimeLineVersion = 1;
constexpr double kLongestLine = 1e9;
constexpr std::size_t kMostConditions = 100'000;

double number_between(const JsonView& view, double low, double high) {
  const double value = view.number();
  if (!(value >= low && value <= high))
    throw UserError("{} is {}, must be from {} to {}", view.where(), value, low, high);
  return value;
}

}  // namespace

bool looks_like_time_line(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

OrderedJson to_json(const TimeLine& line) {
  OrderedJson all = OrderedJson::array();
  for (const TimedCondition& one : line.conditions)
    all.push_back({{"cause", word_of(one.condition.cause)},
                   {"where", one.condition.where},
                   {"factor", one.condition.factor},
                   {"at", one.at},
                   {"for", one.length}});
  return {{"format", "optimus-conditions"},
          {"version", kTimeLineVersion},
          {"length", line.length},
          {"conditions", all}};
}

TimeLine parse_time_line(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-conditions") json.at("format").refuse("\"optimus-conditions\"");
  if (const auto version = json.at("version").integer(); version != kTimeLineVersion)
    throw UserError("{}: version {}, this program reads version {}", source, version, kTimeLineVersion);
  TimeLine line;
  line.length = number_between(json.at("length"), 1e-3, kLongestLine);
  for (const JsonView& one : json.at("conditions").elements()) {
    if (line.conditions.size() == kMostConditions)
      throw UserError("{}: more than {} conditions", source, kMostConditions);
    TimedCondition timed;
    timed.condition.cause = parse_cause(one.at("cause").text(), one.at("cause").where());
    if (timed.condition.cause > Cause::cluster)
      one.at("cause").refuse("device, link, host or cluster: what concerns machines");
    timed.condition.where = static_cast<int>(one.integer_or("where", 0));
    timed.condition.factor = number_between(one.at("factor"), 1, 1e6);
    timed.at = number_between(one.at("at"), 0, line.length);
    timed.length = number_between(one.at("for"), 0, kLongestLine);
    line.conditions.push_back(timed);
  }
  return line;
}

TimeLine read_time_line(const Path& file) {
  return parse_time_line(value_or_throw(read_file(file, Bytes(std::int64_t{1} << 28))), file.string());
}

}  // namespace optimus
