// Spans of time on named tracks, in the JSON form of trace events: Perfetto (ui.perfetto.dev) and chrome://tracing open it. Not
// what the spans are of (simulate/report.h, report/profile_report.h).
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace optimus {

class TraceEvents {
 public:
  // A track belongs to a process, which viewers show as a heading above its tracks. Both are known by numbers.
  void name_process(std::size_t process, std::string_view name);
  void name_track(std::size_t process, std::size_t track, std::string_view name);
  // In seconds; what ends before it begins has no length.
  void span(std::string_view what, std::size_t process, std::size_t track, double start, double end);

  // The file. `more`: members beside the events, which viewers pass over.
  std::string text(const OrderedJson& more = OrderedJson::object()) const;

 private:
  void add_name(std::string_view kind, std::size_t process, std::size_t track, std::string_view name);
  std::string events_;
};

}  // namespace optimus
