// Implements the failure path of ensure(). Everything else is in error.h.
#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace optimus {

void ensure_failed(const std::string& message, const std::source_location& where) {
  fmt::print(stderr, "optimus: internal error at {}:{}: {}\n", where.file_name(), where.line(), message);
  std::abort();
}

}  // namespace optimus
