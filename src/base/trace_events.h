// Time spans on named tracks in the Chrome trace event format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open. The contents of the spans are defined elsewhere (simulate/report.h,
// report/profile_report.h).
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

class TraceEvents {
 public:
  // A track belongs to a process, which viewers show as a heading above its tracks. Processes and tracks are
  // identified by numbers.
  void name_process(std::size_t process, std::string_view name);
  void name_track(std::size_t process, std::size_t track, std::string_view name);
  // start and end are in seconds; a span with end < start gets the length 0.
  void span(std::string_view name, std::size_t process, std::size_t track, double start, double end);

  // The contents of the trace file. `attributes`: additional top-level members, which viewers ignore.
  std::string text(const OrderedJson& attributes = OrderedJson::object()) const;

 private:
  void add_name(std::string_view kind, std::size_t process, std::size_t track, std::string_view name);
  std::string events_;
};

}  // namespace optimus
