// Implements status_line.h.
#include "observe/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/time_stamp.h"

namespace optimus {
namespace {

constexpr Seconds kDrawInterval{0.1}, kLogInterval{10};
constexpr std::string_view kEraseLine = "\r\033[K";

bool supports_control_codes(std::FILE* out) {
  const char* const kind = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

// File names may contain any bytes, including terminal control sequences.
std::string remove_control_codes(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = c == '\n' || c == '\t' ? ' ' : '?';
  return result;
}

// The first `columns` UTF-8 characters, each of which is assumed to be one column wide.
std::string_view truncate(std::string_view line, int columns) {
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool begins_character = (static_cast<unsigned char>(line[at]) & 0xc0) != 0x80;
    if (begins_character && columns-- == 0) return line.substr(0, at);
  }
  return line;
}

}  // namespace

Seconds steady_seconds() {
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

StatusLine::StatusLine(std::FILE* out, Clock clock) : StatusLine(out, std::move(clock), false) {}

StatusLine::StatusLine(std::FILE* out, Clock clock, bool has_time_stamps, std::FILE* console)
    : out_(out),
      console_(console),
      clock_(std::move(clock)),
      has_time_stamps_(has_time_stamps),
      is_terminal_(!has_time_stamps && supports_control_codes(out)),
      next_print_(clock_()),
      next_log_(next_print_ + kLogInterval) {
  if (!is_terminal_) next_print_ += kLogInterval;
}

void StatusLine::switch_to_console() {
  const std::lock_guard lock(mutex_);
  if (console_ == nullptr) return;
  log_ = std::exchange(out_, std::exchange(console_, nullptr)), has_time_stamps_ = false;
  is_terminal_ = supports_control_codes(out_);
}

void StatusLine::log_to(std::FILE* log) {
  const std::lock_guard lock(mutex_);
  log_ = log;
}

int StatusLine::columns() const {
  if (!is_terminal_) return std::numeric_limits<int>::max();
  winsize size{};
  const bool is_known = ::ioctl(::fileno(out_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (is_known ? size.ws_col : 80) - 1;  // some terminals wrap after a full line
}

bool StatusLine::is_due() const {
  const std::lock_guard lock(mutex_);
  return clock_() >= next_print_;
}

bool StatusLine::show(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (clock_() < next_print_) return false;
  draw(line);
  return true;
}

void StatusLine::show_now(std::string_view line) {
  const std::lock_guard lock(mutex_);
  draw(line);
}

void StatusLine::draw(std::string_view line) {
  const Seconds current_time = clock_();
  next_print_ = current_time + (is_terminal_ ? kDrawInterval : kLogInterval);
  const std::string clean = remove_control_codes(line);
  if (current_time >= next_log_ || !is_terminal_) write_log(clean), next_log_ = current_time + kLogInterval;
  if (!is_terminal_) return write((has_time_stamps_ ? time_stamp() : "") + clean + "\n");
  visible_line_ = truncate(clean, columns());
  write(std::string(kEraseLine) + visible_line_);
}

void StatusLine::print(std::string_view line) {
  const std::lock_guard lock(mutex_);
  write_log(remove_control_codes(line));
  const std::string clean = (has_time_stamps_ ? time_stamp() : "") + remove_control_codes(line) + "\n";
  write(visible_line_.empty() ? clean : std::string(kEraseLine) + clean + visible_line_);
}

void StatusLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!visible_line_.empty()) write(std::string(kEraseLine));
  visible_line_.clear();
}

void StatusLine::keep() {
  const std::lock_guard lock(mutex_);
  if (!visible_line_.empty()) write("\n");
  visible_line_.clear();
}

void StatusLine::write_log(const std::string& line) {
  if (log_ == nullptr) return;
  const std::string text = time_stamp() + line + "\n";
  std::fwrite(text.data(), 1, text.size(), log_);
  std::fflush(log_);
}

void StatusLine::write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

}  // namespace optimus
