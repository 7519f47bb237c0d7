// Three kinds of failure, three mechanisms.
//
//   the user's mistake  -> UserError, thrown; its text says what is wrong, which value, what would be right
//   the world failed    -> Outcome<T>, returned; the caller must look (peer gone, disk full, time-out)
//   we are wrong        -> ensure(...), throws InternalError with the values; never used on input from outside
//
// Read next: base/options.h (where most UserErrors about settings are born), cli/main.cpp (exit codes).
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace optimus {

// The user's mistake. what() is one line. The command line prints it and exits with 1.
class UserError : public std::runtime_error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A command line that cannot be understood. As UserError, but the exit code is 2.
class UsageError : public UserError {
 public:
  using UserError::UserError;
};

// A defect of this program. Nothing below the command line and the library's boundary catches it: what the program believed about its own
// state is wrong. what() has file, line and the values.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Why the world did not do what we asked: one line, with the file or peer in it.
struct Failure {
  std::string why;
};

template <typename T>
using Outcome = tl::expected<T, Failure>;

template <typename... Args>
tl::unexpected<Failure> failure(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Failure>(Failure{fmt::format(format, std::forward<Args>(args)...)});
}

// For callers to whom a failure of the world is the end of the command: turns it into a UserError.
template <typename T>
T value_or_throw(Outcome<T> outcome) {
  if (!outcome) throw UserError("{}", outcome.error().why);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

[[noreturn]] void ensure_failed(const std::string& message, const std::source_location& where);

// A format string that remembers where it was written, so that ensure() needs no macro.
template <typename... Args>
struct FormatHere {
  fmt::format_string<Args...> format;
  std::source_location where;
  template <typename Text>
  consteval FormatHere(const Text& text, std::source_location here = std::source_location::current())
      : format(text), where(here) {}
};

// States what must be true; throws InternalError with the message, file and line if it is not.
template <typename... Args>
void ensure(bool is_true, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!is_true) [[unlikely]]
    ensure_failed(fmt::format(message.format, std::forward<Args>(args)...), message.where);
}

}  // namespace optimus
