// Reads traces of comma-separated lines, and detects the format of a text.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "simulate/availability_builder.h"

namespace optimus {

void TraceBuilder::add(double seconds, const std::string& name, const std::string& location) {
  constexpr int kMaxNodes = 1'000'000;
  const auto [at, is_new] = numbers_.try_emplace(name, static_cast<int>(numbers_.size()));
  if (is_new) is_present_.push_back(false);
  if (numbers_.size() > kMaxNodes)
    throw UserError("{}: the trace has more than {} nodes", location, kMaxNodes);
  if (is_present_[static_cast<std::size_t>(at->second)])
    throw UserError("{}: node {} is added twice", location, in_quotes(name));
  append_event(seconds, true, at->second, location);
}

void TraceBuilder::remove(double seconds, const std::string& name, const std::string& location) {
  if (!is_present(name))
    throw UserError("{}: node {} is removed but was not present", location, in_quotes(name));
  append_event(seconds, false, numbers_.find(name)->second, location);
}

void TraceBuilder::set_count(double seconds, double nodes, const std::string& location) {
  constexpr double kMaxValue = 1e6, kMaxEvents = 3e6;
  if (!(nodes >= 0 && nodes <= kMaxValue))
    throw UserError("{}: expected 0 to {:.0f} nodes, got {}", location, kMaxValue, nodes);
  if (static_cast<double>(events_.size()) + nodes > kMaxEvents)
    throw UserError("{}: more than {:.0f} nodes are added and removed", location, kMaxEvents);
  const int num_nodes = static_cast<int>(nodes);
  while (num_counted_ < num_nodes) add(seconds, std::to_string(num_counted_), location), ++num_counted_;
  while (num_counted_ > num_nodes) --num_counted_, remove(seconds, std::to_string(num_counted_), location);
  latest_seconds_ = std::max(latest_seconds_, seconds);
  extend_to(seconds);
}

void TraceBuilder::extend_to(double seconds) { length_ = std::max(length_, seconds); }

bool TraceBuilder::is_present(const std::string& name) const {
  const auto at = numbers_.find(name);
  return at != numbers_.end() && is_present_[static_cast<std::size_t>(at->second)];
}

AvailabilityTrace TraceBuilder::take(const std::string& form, const std::string& source) {
  if (events_.empty()) throw UserError("{}: no node is ever available in the trace", source);
  return {std::move(events_), static_cast<int>(numbers_.size()), length_, form};
}

void TraceBuilder::append_event(double seconds, bool is_add, int node, const std::string& location) {
  if (seconds < latest_seconds_)
    throw UserError("{}: times must not decrease, but {} s follows {} s", location, seconds, latest_seconds_);
  events_.push_back({seconds, is_add, node});
  is_present_[static_cast<std::size_t>(node)] = is_add;
  latest_seconds_ = seconds;
  extend_to(seconds);
}

double trace_number(std::string_view cell, const std::string& location, const char* field) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value) || value < 0 ||
      value > 1e15)
    throw UserError("{}: {}: expected a non-negative number, got {}", location, field, in_quotes(cell));
  return value;
}

namespace {

// "2021-12-10", "13:07:45" -> seconds since a fixed day, without leap seconds.
double clock_seconds(std::string_view date, std::string_view time, const std::string& location) {
  const std::vector<std::string> day = split(date, '-'), hour = split(time, ':');
  if (day.size() != 3 || hour.size() != 3)
    throw UserError("{}: {} is not a date and time", location,
                    in_quotes(std::string(date) + " " + std::string(time)));
  const auto read_part = [&](const std::string& cell) {
    return trace_number(cell, location, "a part of the date");
  };
  const double month = read_part(day[1]), year = read_part(day[0]) - (month <= 2 ? 1 : 0);
  // Days since 1 March of year 0. If years start in March, months have 30.6 days on average.
  const double days = std::floor(365.25 * year) - std::floor(year / 100) + std::floor(year / 400) +
                      std::floor(30.6 * (month <= 2 ? month + 9 : month - 3) + 0.5) + read_part(day[2]);
  return days * 86400 + read_part(hour[0]) * 3600 + read_part(hour[1]) * 60 + read_part(hour[2]);
}

struct Line {
  std::string location;
  std::vector<std::string> cells;
};

std::vector<Line> lines_of(std::string_view text, const std::string& source) {
  std::vector<Line> lines;
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string location = fmt::format("{}:{}", source, ++number);
    if (trim(line).empty()) continue;
    Line& new_line = lines.emplace_back(Line{location, {}});
    for (const std::string& cell : split(trim(line), ',')) new_line.cells.emplace_back(trim(cell));
  }
  return lines;
}

// milliseconds,add|remove,node
AvailabilityTrace read_events(const std::vector<Line>& lines, const std::string& source) {
  TraceBuilder builder;
  for (const auto& [location, cells] : lines) {
    if (cells.size() != 3 || (cells[1] != "add" && cells[1] != "remove"))
      throw UserError("{}: expected milliseconds,add|remove,node, as in the preceding lines", location);
    const double seconds = trace_number(cells[0], location, "the time") / 1000;
    cells[1] == "add" ? builder.add(seconds, cells[2], location)
                      : builder.remove(seconds, cells[2], location);
  }
  return builder.take("milliseconds, add or remove, node", source);
}

// date,time,count. The clocks of several machines differ slightly, so a line with an earlier time than the
// preceding line is treated as if the times were equal.
AvailabilityTrace read_clock(const std::vector<Line>& lines, const std::string& source) {
  TraceBuilder builder;
  std::optional<double> begin_time;
  double latest = 0;
  for (const auto& [location, cells] : lines) {
    if (cells.size() != 3)
      throw UserError("{}: expected date,time,count, as in the preceding lines", location);
    const double seconds = clock_seconds(cells[0], cells[1], location);
    if (!begin_time) begin_time = seconds;
    latest = std::max(latest, seconds - *begin_time);
    builder.set_count(latest, trace_number(cells[2], location, "the number of nodes"), location);
  }
  return builder.take("date, time, number of nodes", source);
}

struct Count {
  double time, nodes;
};

// Whether the lines are the points of a step function: each change has a line with the old count before the
// line with the new count, at the same time.
bool is_step_function(const std::vector<Count>& counts) {
  bool has_step = false;
  for (std::size_t i = 1; i < counts.size(); ++i) {
    if (counts[i].nodes == counts[i - 1].nodes) continue;
    if (counts[i].time != counts[i - 1].time) return false;
    const bool follows_old_count = i >= 2 && counts[i - 2].nodes == counts[i - 1].nodes;
    if (!follows_old_count) return false;
    has_step = true;
  }
  return has_step;
}

// time,count. Times are milliseconds if each line is an event or a sample. In step functions, which were made
// for figures, times are seconds, or hours if they have a decimal point.
AvailabilityTrace read_counts(const std::vector<Line>& lines, const std::string& source) {
  std::vector<Count> counts;
  bool has_point = false;
  for (const auto& [location, cells] : lines) {
    if (cells.size() != 2) throw UserError("{}: expected time,count, as in the preceding lines", location);
    counts.push_back({trace_number(cells[0], location, "the time"),
                      trace_number(cells[1], location, "the number of nodes")});
    has_point = has_point || cells[0].find('.') != std::string::npos;
  }
  const double unit = has_point ? 3600 : is_step_function(counts) ? 1 : 1e-3;
  TraceBuilder builder;
  for (std::size_t i = 0; i < counts.size(); ++i)
    builder.set_count(counts[i].time * unit, counts[i].nodes, lines[i].location);
  return builder.take(fmt::format("{}, number of nodes", has_point   ? "hours"
                                                         : unit == 1 ? "seconds"
                                                                     : "milliseconds"),
                      source);
}

}  // namespace

AvailabilityTrace parse_trace(std::string_view text, const std::string& source) {
  const std::string_view body = trim(text);
  if (starts_with(body, "[")) {
    const std::string_view elements = trim(body.substr(1));
    const bool is_json_lines = !elements.empty() && elements[0] >= '0' && elements[0] <= '9';
    return is_json_lines ? parse_json_lines_trace(text, source) : parse_json_trace(text, source);
  }
  const std::vector<Line> lines = lines_of(text, source);
  if (lines.empty()) throw UserError("{}: no node is ever available in the trace", source);
  const std::vector<std::string>& first = lines.front().cells;
  if (first.size() == 2) return read_counts(lines, source);
  if (first.size() == 3 && (first[1] == "add" || first[1] == "remove")) return read_events(lines, source);
  if (first.size() == 3) return read_clock(lines, source);
  const bool is_minibatch_table = std::find(first.begin(), first.end(), "batch_time_norm") != first.end();
  throw UserError(
      "{}: {}; supported formats: milliseconds,add|remove,node; time,count; date,time,count; JSON",
      lines.front().location,
      is_minibatch_table ? "a table of mini-batch times does not contain the availability of nodes"
                         : in_quotes(join(first, ","), 60) + " is not a valid line of a trace file");
}

}  // namespace optimus
