// The one exception type of the library.
//
// what() returns one line that states what is wrong, the offending value, and which values are valid. kind()
// indicates who can fix the error. The library never terminates the process and never writes to the console.
// Internal errors are thrown as exceptions, too.
#pragma once

#include <stdexcept>
#include <string>

#include "optimus/export.h"

namespace optimus {
inline namespace v0 {

enum class ErrorKind {
  user,      // an invalid option, file or request: correct it
  runtime,   // a device, disk, network or process failed: repair it, then resume the run
  internal,  // a bug in the library: report it
};

class OPTIMUS_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what);
  ~Error() override;
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace v0
}  // namespace optimus
