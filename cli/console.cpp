// See console.h.
#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/units.h"

namespace optimus {

using namespace std::chrono_literals;

Console::Console()
    : is_terminal_(::isatty(STDERR_FILENO) == 1), next_(std::chrono::steady_clock::now()), begin_(next_) {
  if (!is_terminal_) next_ += 10s;  // short work needs no progress in a log
}

Console::~Console() { clear_line(); }

void Console::result(const OrderedJson& json, const std::string& text) {
  clear_line();
  if (wants_json)
    fmt::print("{}\n", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
  else
    fmt::print("{}", text);
  std::fflush(stdout);
}

void Console::report(const Event& event) {
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
