// See availability.h.
#include "simulate/availability.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr int kMostNodes = 1'000'000;

double number(std::string_view cell, const std::string& where, const char* what) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value) || value < 0 ||
      value > 1e15)
    throw UserError("{}: {} is {}, must be a number that is not negative", where, what, in_quotes(cell));
  return value;
}

// Collects events; nodes known only by their number come and go last in, first out.
class TraceBuilder {
 public:
  void add(double seconds, const std::string& name, const std::string& where) {
    const auto [at, is_new] = numbers_.try_emplace(name, static_cast<int>(numbers_.size()));
    if (is_new) is_there_.push_back(false);
    if (numbers_.size() > kMostNodes) throw UserError("{}: more than {} nodes", where, kMostNodes);
    if (is_there_[static_cast<std::size_t>(at->second)])
      throw UserError("{}: node {} is there already", where, in_quotes(name));
    put(seconds, true, at->second, where);
  }
  void remove(double seconds, const std::string& name, const std::string& where) {
    const auto at = numbers_.find(name);
    if (at == numbers_.end() || !is_there_[static_cast<std::size_t>(at->second)])
      throw UserError("{}: node {} is removed but was not there", where, in_quotes(name));
    put(seconds, false, at->second, where);
  }
  void count(double seconds, double nodes, const std::string& where) {
    if (nodes > kMostNodes) throw UserError("{}: more than {} nodes", where, kMostNodes);
    const int wanted = static_cast<int>(nodes);
    while (counted_ < wanted) add(seconds, std::to_string(counted_), where), ++counted_;
    while (counted_ > wanted) --counted_, remove(seconds, std::to_string(counted_), where);
    length_ = std::max(length_, seconds);
  }
  AvailabilityTrace take() { return {std::move(events_), static_cast<int>(numbers_.size()), length_}; }

 private:
  void put(double seconds, bool is_add, int node, const std::string& where) {
    if (seconds < length_)
      throw UserError("{}: time runs backwards, {} s after {} s", where, seconds, length_);
    events_.push_back({seconds, is_add, node});
    is_there_[static_cast<std::size_t>(node)] = is_add;
    length_ = seconds;
  }

  std::vector<NodeEvent> events_;
  std::map<std::string, int> numbers_;
  std::vector<bool> is_there_;
  int counted_ = 0;
  double length_ = 0;
};

// "2021-12-10", "13:07:45" -> seconds since some day; months of the calendar, no leap seconds.
double clock_seconds(std::string_view date, std::string_view time, const std::string& where) {
  const std::vector<std::string> day = split(date, '-'), hour = split(time, ':');
  if (day.size() != 3 || hour.size() != 3)
    throw UserError("{}: {} is no date and time", where,
                    in_quotes(std::string(date) + " " + std::string(time)));
  const auto part = [&](const std::string& cell) { return number(cell, where, "a part of the date"); };
  const double month = part(day[1]), year = part(day[0]) - (month <= 2 ? 1 : 0);
  // Days since 1 March of year 0: months from March on have 30.6 days on average.
  const double days = std::floor(365.25 * year) - std::floor(year / 100) + std::floor(year / 400) +
                      std::floor(30.6 * (month <= 2 ? month + 9 : month - 3) + 0.5) + part(day[2]);
  return days * 86400 + part(hour[0]) * 3600 + part(hour[1]) * 60 + part(hour[2]);
}

}  // namespace

AvailabilityTrace parse_trace(std::string_view text, const std::string& source) {
  TraceBuilder builder;
  int number_of_line = 0;
  std::optional<double> began;
  double latest = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string where = fmt::format("{}:{}", source, ++number_of_line);
    if (trim(line).empty()) continue;
    std::vector<std::string> cells;
    for (const std::string& cell : split(trim(line), ',')) cells.emplace_back(trim(cell));
    if (cells.size() == 3 && (cells[1] == "add" || cells[1] == "remove")) {
      const double seconds = number(cells[0], where, "the time") / 1000;
      cells[1] == "add" ? builder.add(seconds, cells[2], where) : builder.remove(seconds, cells[2], where);
    } else if (cells.size() == 3) {
      // Clocks of several machines: a line that is a little early counts as now.
      const double seconds = clock_seconds(cells[0], cells[1], where);
      if (!began) began = seconds;
      latest = std::max(latest, seconds - *began);
      builder.count(latest, number(cells[2], where, "the number of nodes"), where);
    } else if (cells.size() == 2) {
      builder.count(number(cells[0], where, "the time") / 1000,
                    number(cells[1], where, "the number of nodes"), where);
    } else {
      throw UserError(
          "{}: {} is no line of a trace: milliseconds,add|remove,node or milliseconds,count or "
          "date,time,count",
          where, in_quotes(line));
    }
  }
  AvailabilityTrace trace = builder.take();
  if (trace.events.empty()) throw UserError("{}: no node is ever there", source);
  return trace;
}

std::vector<NodeCount> node_counts(const AvailabilityTrace& trace) {
  std::vector<NodeCount> counts;
  int nodes = 0;
  for (const NodeEvent& event : trace.events) {
    nodes += event.is_add ? 1 : -1;
    if (!counts.empty() && counts.back().seconds == event.seconds)
      counts.back().nodes = nodes;
    else
      counts.push_back({event.seconds, nodes});
  }
  return counts;
}

Replay replay_one_plan(const AvailabilityTrace& trace, const ReplayOptions& options) {
  Replay result;
  double useful_seconds = 0, possible_seconds = 0, steps = 0;
  std::vector<bool> is_there(static_cast<std::size_t>(trace.num_nodes)), is_used(is_there);
  int num_there = 0;
  bool is_running = false;
  double began = 0, now = 0;  // of the running stretch, after its restart
  const auto stop = [&](double at) {
    // Whole steps count; what is in flight is lost.
    const double ran = std::max(0.0, at - began), done = std::floor(ran / options.step_seconds);
    steps += done, useful_seconds += done * options.step_seconds;
    result.steps_lost += ran > done * options.step_seconds;
    is_running = false;
  };
  const auto start = [&](double at) {
    if (is_running || num_there < options.nodes_needed) return;
    int chosen = 0;
    for (std::size_t node = 0; node < is_there.size(); ++node) {
      is_used[node] = is_there[node] && chosen < options.nodes_needed;
      chosen += is_used[node];
    }
    is_running = true, began = at + options.restart_seconds;
    ++result.restarts;
  };
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const NodeEvent& event = trace.events[i];
    if (num_there >= options.nodes_needed) possible_seconds += event.seconds - now;
    now = event.seconds;
    const auto node = static_cast<std::size_t>(event.node);
    is_there[node] = event.is_add, num_there += event.is_add ? 1 : -1;
    if (!event.is_add && is_running && is_used[node]) stop(now);
    const bool is_last_of_instant = i + 1 == trace.events.size() || trace.events[i + 1].seconds > now;
    if (is_last_of_instant) start(now);
  }
  if (num_there >= options.nodes_needed) possible_seconds += std::max(0.0, trace.length - now);
  if (is_running) stop(trace.length);
  if (trace.length > 0) result.useful_tokens_per_second = steps * options.tokens_per_step / trace.length;
  if (possible_seconds > 0) result.fraction_of_oracle = useful_seconds / possible_seconds;
  result.seconds_lost = std::max(0.0, possible_seconds - useful_seconds);
  return result;
}

}  // namespace optimus
