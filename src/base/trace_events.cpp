// See trace_events.h.
#include "base/trace_events.h"

#include <fmt/format.h>

#include <algorithm>

namespace optimus {
namespace {

std::string json_text(std::string_view label) {
  return Json(label).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void TraceEvents::add_name(std::string_view kind, std::size_t process, std::size_t track,
                           std::string_view name) {
  events_ += fmt::format("{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}},\n",
                         kind, process, track, json_text(name));
}

void TraceEvents::name_process(std::size_t process, std::string_view name) {
  add_name("process_name", process, 0, name);
}

void TraceEvents::name_track(std::size_t process, std::size_t track, std::string_view name) {
  add_name("thread_name", process, track, name);
}

void TraceEvents::span(std::string_view name, std::size_t process, std::size_t track, double start,
                       double end) {
  events_ += fmt::format("{{\"name\":{},\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}},\n",
                         json_text(name), process, track, start * 1e6, std::max(0.0, end - start) * 1e6);
}

std::string TraceEvents::text(const OrderedJson& attributes) const {
  std::string result = "{\"displayTimeUnit\":\"ms\",\n";
  for (const auto& [key, value] : attributes.items())
    result +=
        json_text(key) + ":" + value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + ",\n";
  return result + "\"traceEvents\":[\n" + events_ +
         "{\"name\":\"begin\",\"ph\":\"i\",\"s\":\"g\",\"pid\":0,\"tid\":0,\"ts\":0}]}\n";
}

}  // namespace optimus
