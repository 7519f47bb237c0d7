// Reads traces in JSON: a list of samples, of durations, or of faults, or one list per line.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "simulate/availability_builder.h"

namespace optimus {
namespace {

double read_non_negative(const JsonView& value) {
  const double number = value.number();
  if (!(number >= 0 && number <= 1e15)) value.refuse("a non-negative number");
  return number;
}

// [{"Time": seconds, "GPUs": count}, …]
AvailabilityTrace read_samples(const std::vector<JsonView>& samples, const std::string& source) {
  TraceBuilder builder;
  for (const JsonView& sample : samples)
    builder.set_count(read_non_negative(sample.at("Time")), read_non_negative(sample.at("GPUs")),
                      sample.location());
  return builder.take("seconds, number of devices (JSON)", source);
}

// [{"time": minutes, "size": count}, …]: the duration of each count. The trace ends when the last count ends.
AvailabilityTrace read_durations(const std::vector<JsonView>& parts, const std::string& source) {
  TraceBuilder builder;
  double now = 0;
  for (const JsonView& part : parts) {
    const double minutes = read_non_negative(part.at("time"));
    if (minutes > 0) builder.set_count(now, read_non_negative(part.at("size")), part.location());
    builder.extend_to(now += minutes * 60);
  }
  return builder.take("minutes, number of devices (JSON)", source);
}

struct Fault {
  double seconds = 0;
  bool is_start = true;
  std::string node;
  std::string location;
};

std::vector<Fault> faults_of(const std::vector<JsonView>& events) {
  std::vector<Fault> faults;
  constexpr double kDay = 86400;
  for (const JsonView& event : events) {
    const JsonView kind = event.at("event_type");
    if (kind.text() != "fault_start" && kind.text() != "fault_end")
      kind.refuse("\"fault_start\" or \"fault_end\"");
    faults.push_back({read_non_negative(event.at("event_time")) * kDay, kind.text() == "fault_start",
                      event.at("node_id").text(), event.location()});
  }
  std::stable_sort(faults.begin(), faults.end(),
                   [](const Fault& a, const Fault& b) { return a.seconds < b.seconds; });
  return faults;
}

// All nodes with faults are present from the start, except nodes whose first event is a fault_end. A node
// with several simultaneous faults returns when the last fault has ended.
AvailabilityTrace read_faults(const std::vector<JsonView>& events, const std::string& source) {
  const std::vector<Fault> faults = faults_of(events);
  std::map<std::string, int> num_open_faults;  // node -> number of faults that have not ended
  TraceBuilder builder;
  for (const Fault& fault : faults) {
    const auto [at, is_new] = num_open_faults.try_emplace(fault.node, fault.is_start ? 0 : 1);
    if (is_new && fault.is_start) builder.add(0, fault.node, fault.location);
  }
  for (const Fault& fault : faults) {
    int& num_open = num_open_faults[fault.node];
    num_open = std::max(0, num_open + (fault.is_start ? 1 : -1));
    if (num_open == 1 && fault.is_start && builder.is_present(fault.node))
      builder.remove(fault.seconds, fault.node, fault.location);
    if (num_open == 0 && !builder.is_present(fault.node))
      builder.add(fault.seconds, fault.node, fault.location);
    builder.extend_to(fault.seconds);
  }
  return builder.take("faults of nodes, in days; nodes without faults are not listed (JSON)", source);
}

}  // namespace

AvailabilityTrace parse_json_trace(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const std::vector<JsonView> elements = JsonView(document, source).elements();
  if (elements.empty()) throw UserError("{}: no node is ever available in the trace", source);
  const JsonView& first = elements.front();
  if (first.raw().is_object() && first.find("Time")) return read_samples(elements, source);
  if (first.raw().is_object() && first.find("size")) return read_durations(elements, source);
  if (first.raw().is_object() && first.find("event_type")) return read_faults(elements, source);
  first.refuse("an object with Time and GPUs, time and size, or node_id, event_time and event_type");
}

AvailabilityTrace parse_json_lines_trace(std::string_view text, const std::string& source) {
  TraceBuilder builder;
  int number = 0;
  for (const std::string& line : split(text, '\n')) {
    const std::string location = fmt::format("{}:{}", source, ++number);
    if (trim(line).empty()) continue;
    const Json document = parse_json(line, location);
    const std::vector<JsonView> cells = JsonView(document, location).elements();
    if (cells.size() != 3)
      throw UserError("{}: expected time, event and nodes, got {} elements", location, cells.size());
    const double seconds = read_non_negative(cells[0]) / 1000;
    const std::string& event = cells[1].text();
    // A migration is an action of the system that recorded the trace, not a change in available nodes.
    if (event != "add" && event != "remove" && event != "no-op" && event != "migration")
      cells[1].refuse("\"add\", \"remove\", \"no-op\" or \"migration\"");
    for (const JsonView& node : cells[2].at("nodes").elements()) {
      if (event == "add") builder.add(seconds, node.text(), location);
      if (event == "remove") builder.remove(seconds, node.text(), location);
    }
    const auto duration = cells[2].find("duration");
    builder.extend_to(seconds + (duration ? read_non_negative(*duration) / 1000 : 0));
  }
  return builder.take("milliseconds, event, nodes (one JSON list per line)", source);
}

}  // namespace optimus
