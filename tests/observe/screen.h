// A terminal for tests: a real pseudo-terminal of a given width, and what its screen would show.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace optimus {

class Screen {
 public:
  explicit Screen(unsigned short columns) : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
    out_ = std::fopen(::ptsname(master_), "w");
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    if (out_ != nullptr) ::ioctl(::fileno(out_), TIOCSWINSZ, &size);
  }
  Screen(const Screen&) = delete;
  ~Screen() {
    if (out_ != nullptr) std::fclose(out_);
    if (master_ >= 0) ::close(master_);
  }

  std::FILE* out() const { return out_; }  // null if the system has no pseudo-terminals

  // Everything written since the last call.
  std::string take() {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(master_, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(got));
    return text;
  }

  // The lines on the screen after `written` was shown: interprets carriage returns and "erase to the end of
  // the line".
  static std::vector<std::string> lines(const std::string& written) {
    std::vector<std::string> screen(1);
    std::size_t column = 0;
    for (std::size_t at = 0; at < written.size(); ++at) {
      std::string& line = screen.back();
      if (written.compare(at, 3, "\033[K") == 0) {
        line.resize(column), at += 2;
      } else if (written[at] == '\r') {
        column = 0;
      } else if (written[at] == '\n') {
        screen.emplace_back(), column = 0;
      } else {
        line.resize(std::max(line.size(), column + 1));
        line[column++] = written[at];
      }
    }
    return screen;
  }

 private:
  int master_;
  std::FILE* out_ = nullptr;
};

}  // namespace optimus
