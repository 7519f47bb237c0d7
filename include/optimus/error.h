// The one exception type of the library.
//
// what() is one line that says what is wrong, with which value, and what would be valid. kind() says who
// can fix it. The library never ends the process and never writes to the console: internal errors are
// thrown as exceptions too.
#pragma once

#include <stdexcept>
#include <string>

#include "optimus/export.h"

namespace optimus {
inline namespace v0 {

enum class ErrorKind {
  user,      // an option, a file or a request that cannot work: change it
  runtime,   // a device, disk, network or process failed: repair it, then resume the run
  internal,  // a defect of the library: report it
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
