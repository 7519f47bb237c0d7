// Three kinds of failure and the mechanism for each.
//
//   user error            -> UserError, thrown; states the problem, the value and a valid alternative
//   environment failure   -> Outcome<T>, returned; the caller must check it (lost peer, full disk, timeout)
//   internal error        -> ensure(...), throws InternalError with the values; never used to check external
//                            input
//
// Read next: base/options.h (the source of most UserErrors about settings), cli/main.cpp (exit codes).
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace optimus {

// An error that the user can correct. `what()` is one line; the command line prints it and exits with code
// 1.
class UserError : public std::runtime_error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// An error in the syntax of the command line. Like UserError, but the exit code is 2.
class UsageError : public UserError {
 public:
  using UserError::UserError;
};

// A defect of this program: an invariant does not hold. Only the command line and the library boundary catch
// it. `what()` contains the file, the line and the values.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The reason why an operation on the environment failed: one line that names the file or the peer.
struct Failure {
  std::string why;
};

template <typename T>
using Outcome = tl::expected<T, Failure>;

template <typename... Args>
tl::unexpected<Failure> failure(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Failure>(Failure{fmt::format(format, std::forward<Args>(args)...)});
}

// Returns the value, or throws the failure as a UserError. For callers that cannot continue without the
// value.
template <typename T>
T value_or_throw(Outcome<T> outcome) {
  if (!outcome) throw UserError("{}", outcome.error().why);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

[[noreturn]] void ensure_failed(const std::string& message, const std::source_location& where);

// A format string that records its source location, so that ensure() needs no macro.
template <typename... Args>
struct FormatHere {
  fmt::format_string<Args...> format;
  std::source_location where;
  template <typename Text>
  consteval FormatHere(const Text& text, std::source_location here = std::source_location::current())
      : format(text), where(here) {}
};

// Checks an internal invariant. If `is_true` is false, throws InternalError with the message, file and line.
template <typename... Args>
void ensure(bool is_true, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!is_true) [[unlikely]]
    ensure_failed(fmt::format(message.format, std::forward<Args>(args)...), message.where);
}

}  // namespace optimus
