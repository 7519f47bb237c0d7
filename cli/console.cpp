// Implements console.h.
#include "cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace optimus {
namespace {

// Signal handlers can only access globals.
volatile std::sig_atomic_t interrupt_requested = 0, leave_requested = 0;

void note_interrupt(int signal) {
  (signal == SIGTERM ? leave_requested : interrupt_requested) = 1;
  std::signal(signal, SIG_DFL);  // a second signal ends the program immediately
}

}  // namespace

Console::Console() : line_(stderr), events_(line_) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, note_interrupt);
  if (std::signal(SIGHUP, note_interrupt) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // respect nohup
}

void Console::result(const OrderedJson& json, const std::string& text) {
  write(wants_json ? json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n" : text);
}

void Console::stream(const std::string& text) {
  if (!text.empty()) write(text);
}

void Console::write(const std::string& text) {
  line_.clear();
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_written) throw RuntimeFailure("cannot write to standard output: {}", std::strerror(errno));
}

StopToken Console::stop_token() const {
  return StopToken([] {
    if (interrupt_requested != 0) return StopRequest::stop;
    return leave_requested != 0 ? StopRequest::leave : StopRequest::none;
  });
}

void Console::check_interrupted() const {
  if (stop_token().is_requested()) throw Interrupted{};
}

void Console::report(const Event& event) {
  check_interrupted();
  events_.report(event);
}

int terminal_columns(int default_columns) {
  constexpr int kMinColumns = 40;
  winsize size{};
  const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= kMinColumns;
  return is_known ? size.ws_col : default_columns;
}

}  // namespace optimus
