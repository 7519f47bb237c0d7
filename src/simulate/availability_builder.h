// TraceBuilder: collects the events of an availability trace from any format and rejects inconsistent
// events. Used by the readers of all formats (availability_read.cpp, availability_json.cpp).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "simulate/availability.h"

namespace optimus {

// If a trace contains only counts of nodes, the node that was added last is removed first.
class TraceBuilder {
 public:
  // These functions throw a UserError whose message starts with `location`. Times must not decrease.
  void add(double seconds, const std::string& name, const std::string& location);
  void remove(double seconds, const std::string& name, const std::string& location);
  void set_count(double seconds, double nodes, const std::string& location);
  void extend_to(double seconds);  // extends the trace to this time
  bool is_present(const std::string& name) const;

  // Throws UserError if no node is ever available.
  AvailabilityTrace take(const std::string& form, const std::string& source);

 private:
  void append_event(double seconds, bool is_add, int node, const std::string& location);

  std::vector<NodeEvent> events_;
  std::map<std::string, int> numbers_;
  std::vector<bool> is_present_;
  int num_counted_ = 0;
  double latest_seconds_ = 0, length_ = 0;
};

// Parses a non-negative number of at most 1e15. Also used by the readers of other tables.
double trace_number(std::string_view cell, const std::string& location, const char* field);

// Reads the JSON formats: one document, or one list per line.
AvailabilityTrace parse_json_trace(std::string_view text, const std::string& source);
AvailabilityTrace parse_json_lines_trace(std::string_view text, const std::string& source);

}  // namespace optimus
