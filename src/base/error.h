// There are three kinds of failure, and each is reported in a different way.
//
//   user error            -> UserError, thrown; states the problem, the value and a valid alternative
//   environment failure   -> Outcome<T>, returned; the caller must check it (lost peer, full disk, timeout,
//                            damaged checkpoint). A caller that cannot continue throws it as a
//                            RuntimeFailure, usually by value_or_throw().
//   internal error        -> ensure(...), throws InternalError with the values; never used to check external
//                            input
//
// A parser throws UserError, because the user may have written the text. A function that checks whether a
// plan is feasible returns Feasible<T>, which contains either the result or the reason why there is none. The
// reason becomes a UserError only where the user's plan or request is rejected.
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

// Base class of the errors that the program reports to its user. what() is one line, which the command line
// prints before it exits with code 1. Catch ReportedError where the cause does not matter, and a derived
// class where it does.
class ReportedError : public std::runtime_error {
 protected:
  explicit ReportedError(const std::string& message) : std::runtime_error(message) {}
};

// A user mistake: an option, a file or a request that cannot work.
class UserError : public ReportedError {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : ReportedError(fmt::format(format, std::forward<Args>(args)...)) {}
};

// The environment failed: the file system, the network, a process, a peer or a store.
class RuntimeFailure : public ReportedError {
 public:
  template <typename... Args>
  explicit RuntimeFailure(fmt::format_string<Args...> format, Args&&... args)
      : ReportedError(fmt::format(format, std::forward<Args>(args)...)) {}
};

// A command line that cannot be parsed. Like UserError, but the exit code is 2.
class UsageError : public UserError {
 public:
  using UserError::UserError;
};

// A bug in this program: an invariant does not hold. Only the command line and the library boundary catch it.
// what() contains the file, the line and the values.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// The reason for an environment failure, in one line that names the file or the peer.
struct Failure {
  std::string why;
};

template <typename T>
using Outcome = tl::expected<T, Failure>;

template <typename... Args>
tl::unexpected<Failure> failure(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Failure>(Failure{fmt::format(format, std::forward<Args>(args)...)});
}

// Returns the value, or throws the failure as a RuntimeFailure. For callers that cannot continue after a
// failure.
template <typename T>
T value_or_throw(Outcome<T> outcome) {
  if (!outcome) throw RuntimeFailure("{}", outcome.error().why);
  if constexpr (!std::is_void_v<T>) return std::move(*outcome);
}

// The reason why there is no feasible plan or why the requested plan is not feasible, in one line with the
// actual and the expected value.
struct Infeasible {
  std::string why;
};

template <typename T>
using Feasible = tl::expected<T, Infeasible>;

template <typename... Args>
tl::unexpected<Infeasible> infeasible(fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Infeasible>(Infeasible{fmt::format(format, std::forward<Args>(args)...)});
}

// Returns the value, or throws the reason as a UserError. For callers that reject a user's request.
template <typename T>
T value_or_throw(Feasible<T> result) {
  if (!result) throw UserError("{}", result.error().why);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

[[noreturn]] void ensure_failed(const std::string& message, const std::source_location& where);

// A format string that records its source location, so that ensure() needs no macro.
template <typename... Args>
struct FormatHere {
  fmt::format_string<Args...> format;
  std::source_location where;
  template <typename Text>
  consteval FormatHere(const Text& text, std::source_location location = std::source_location::current())
      : format(text), where(location) {}
};

// Checks an internal invariant. If `is_true` is false, throws InternalError with the message, file and
// line.
template <typename... Args>
void ensure(bool is_true, FormatHere<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!is_true) [[unlikely]]
    ensure_failed(fmt::format(message.format, std::forward<Args>(args)...), message.where);
}

}  // namespace optimus
