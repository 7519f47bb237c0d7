// Implements the failure path of ensure(). Everything else is in error.h.
#include "base/error.h"

namespace optimus {

void ensure_failed(const std::string& message, const std::source_location& where) {
  throw InternalError(fmt::format("at {}:{}: {}", where.file_name(), where.line(), message));
}

}  // namespace optimus
