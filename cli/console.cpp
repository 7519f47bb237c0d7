// See console.h.
#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/units.h"

namespace optimus {
namespace {

// A signal handler can only reach what is global.
volatile std::sig_atomic_t is_interrupted = 0;

void note_interrupt(int signal) {
  is_interrupted = 1;
  std::signal(signal, SIG_DFL);  // a second one ends the program at once
}

}  // namespace

using namespace std::chrono_literals;

Console::Console()
    : is_terminal_(::isatty(STDERR_FILENO) == 1), next_(std::chrono::steady_clock::now()), begin_(next_) {
  if (!is_terminal_) next_ += 10s;  // short work needs no progress in a log
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, note_interrupt);
}

Console::~Console() { clear_line(); }

void Console::result(const OrderedJson& json, const std::string& text) {
  clear_line();
  const std::string shown =
      wants_json ? json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n" : text;
  const bool is_written =
      std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size() && std::fflush(stdout) == 0;
  if (!is_written) throw UserError("cannot write to standard output: {}", std::strerror(errno));
}

void Console::report(const Event& event) {
  if (is_interrupted != 0) throw Interrupted{};
  const std::lock_guard lock(mutex_);
  if (const auto* warning = std::get_if<Warning>(&event)) {
    clear_line();
    fmt::print(stderr, "warning: {}\n", warning->text);
  } else {
    show(std::get<Progress>(event));
  }
}

void Console::show(const Progress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + (is_terminal_ ? 100ms : 10000ms);
  const auto amount = [&](double number) {
    return progress.unit == "bytes" ? text(Bytes(static_cast<std::int64_t>(number)))
                                    : short_count(number) + " " + progress.unit;
  };
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  std::string line = fmt::format("{} {}", progress.activity, amount(static_cast<double>(progress.done)));
  if (progress.total > 0)
    line += fmt::format(" of {} ({:.0f} %)", amount(static_cast<double>(progress.total)),
                        100.0 * static_cast<double>(progress.done) / static_cast<double>(progress.total));
  line += fmt::format(", {}/s", amount(static_cast<double>(progress.done) / std::max(seconds, 1e-3)));
  fmt::print(stderr, "{}{}{}", is_terminal_ ? "\r\033[K" : "", line, is_terminal_ ? "" : "\n");
  std::fflush(stderr);
  has_line_ = is_terminal_;
}

void Console::clear_line() {
  if (has_line_) fmt::print(stderr, "\r\033[K");
  has_line_ = false;
}

}  // namespace optimus
