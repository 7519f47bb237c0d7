// Implements include/optimus/error.h.
#include "optimus/error.h"

namespace optimus {
inline namespace v0 {

Error::Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
Error::~Error() = default;

}  // namespace v0
}  // namespace optimus
