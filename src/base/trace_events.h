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
  // A track belongs to a process, which viewers show as a heading above its tracks. `process` and `track`
  // are ids chosen by the caller.
  void name_process(std::size_t process, std::string_view name);
  void name_track(std::size_t process, std::size_t track, std::string_view name);
  // `start` and `end` are in seconds. A span with end < start is written with duration 0.
  void span(std::string_view name, std::size_t process, std::size_t track, double start, double end);

  // The content of the trace file. `attributes` are additional top-level members, which viewers ignore.
  std::string text(const OrderedJson& attributes = OrderedJson::object()) const;

 private:
  void add_name(std::string_view kind, std::size_t process, std::size_t track, std::string_view name);
  std::string events_;
};

}  // namespace optimus
