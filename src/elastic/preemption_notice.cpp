// Implements preemption_notice.h.
#include "elastic/preemption_notice.h"

#include <filesystem>
#include <memory>
#include <tuple>

#include "base/deadline.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "store/http.h"
#include "store/socket.h"

namespace optimus {
namespace {

// The delay after a poll that found a notice, so that slower processes also see it.
constexpr std::chrono::milliseconds kSpreadDelay{500};
constexpr Seconds kResponseTimeout{0.4};
constexpr std::string_view kScheme = "http://";

bool reclaims_machine(const JsonView& events) {
  for (const JsonView& event : events.elements()) {
    const std::string kind = event.text_or("EventType", "");
    if (kind == "Preempt" || kind == "Terminate") return true;
  }
  return false;
}

}  // namespace

bool is_preemption_notice(int status, std::string_view body) {
  const std::string content = lower(trim(body));
  if (status != 200 || content.empty() || content == "false" || content == "none") return false;
  if (content.front() != '{') return true;
  try {
    const Json json = parse_json(body, "a notice");
    const auto events = JsonView(json, "a notice").find("Events");
    return !events || reclaims_machine(*events);
  } catch (const UserError&) {  // a response that is not JSON is a notice
    return true;
  }
}

PreemptionNotice::Place PreemptionNotice::parse(const std::string& source) {
  if (!starts_with(source, kScheme)) {
    if (source.empty() || source.find("://") != std::string::npos)
      throw UserError("--notice {}: expected a file path or http://HOST/PATH", in_quotes(source));
    return {.path = source};
  }
  const std::string location = source.substr(kScheme.size());
  const std::size_t slash = location.find('/');
  const std::string host_and_port = location.substr(0, slash);
  Place result{.path = slash == std::string::npos ? "/" : location.substr(slash)};
  const bool has_port = host_and_port.rfind(':') != std::string::npos && host_and_port.back() != ']';
  std::tie(result.host, result.port) =
      parse_host_port(has_port ? host_and_port : host_and_port + ":80", "--notice " + source);
  return result;
}

PreemptionNotice::PreemptionNotice(const std::string& source)
    : location_(parse(source)), thread_([this] { watch(); }) {}

PreemptionNotice::~PreemptionNotice() {
  is_stopping_ = true;
  thread_.join();
}

bool PreemptionNotice::poll() const {
  if (location_.host.empty()) {
    std::error_code error;
    return std::filesystem::exists(location_.path, error);
  }
  const Deadline deadline = Deadline::after(kResponseTimeout, "a notice");
  Outcome<Socket> socket = Socket::connect(location_.host, location_.port, deadline);
  if (!socket || !socket->send(http_get(location_.host, location_.path), deadline)) return false;
  const Outcome<HttpResponse> answer = read_http_response(*socket, deadline);
  return answer && is_preemption_notice(answer->status, answer->body);
}

bool PreemptionNotice::wait_until(std::chrono::system_clock::time_point instant) const {
  constexpr std::chrono::milliseconds kPollInterval{50};
  while (!is_stopping_ && std::chrono::system_clock::now() < instant)
    std::this_thread::sleep_for(kPollInterval);
  return !is_stopping_;
}

void PreemptionNotice::watch() {
  while (true) {
    const auto next_poll = std::chrono::ceil<std::chrono::seconds>(std::chrono::system_clock::now() +
                                                                   std::chrono::milliseconds(1));
    if (!wait_until(next_poll)) return;
    if (!poll()) continue;
    if (wait_until(next_poll + kSpreadDelay)) is_given_ = true;
    return;
  }
}

StopToken with_preemption_notice(const StopToken& stop, const std::string& option,
                                 const Environment& environment) {
  const std::string location = environment("OPTIMUS_NOTICE").value_or(option);
  if (location.empty()) return stop;
  return stop.combined_with(StopToken([notice = std::make_shared<PreemptionNotice>(location)] {
    return notice->is_given() ? StopRequest::leave : StopRequest::none;
  }));
}

}  // namespace optimus
