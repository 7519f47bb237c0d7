// TraceBuilder: puts the events of an availability trace together, whatever form they came in, and refuses what cannot be.
// Used by the readers of single forms (availability_read.cpp, availability_json.cpp); trace_number by those of tables too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "simulate/availability.h"

namespace optimus {

// Nodes known only by how many there are come and go last in, first out.
class TraceBuilder {
 public:
  // All throw UserError that begins with `where`. Times must not descend.
  void add(double seconds, const std::string& name, const std::string& where);
  void remove(double seconds, const std::string& name, const std::string& where);
  void count(double seconds, double nodes, const std::string& where);
  void end(double seconds);  // the trace goes on until then
  bool is_there(const std::string& name) const;

  // Throws UserError when no node is ever there.
  AvailabilityTrace take(const std::string& form, const std::string& source);

 private:
  void put(double seconds, bool is_add, int node, const std::string& where);

  std::vector<NodeEvent> events_;
  std::map<std::string, int> numbers_;
  std::vector<bool> is_there_;
  int counted_ = 0;
  double latest_ = 0, length_ = 0;
};

// A number that is not negative and at most 1e15.
double trace_number(std::string_view cell, const std::string& where, const char* what);

// The forms that are JSON: one document, or a list a line.
AvailabilityTrace parse_json_trace(std::string_view text, const std::string& source);
AvailabilityTrace parse_json_lines_trace(std::string_view text, const std::string& source);

}  // namespace optimus
