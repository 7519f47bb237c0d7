// The boundary of the library: translates internal exceptions into optimus::Error.
#pragma once

#include <exception>
#include <new>

#include "base/error.h"
#include "optimus/error.h"

namespace optimus {

// Runs `work` and translates its exceptions.
template <typename Work>
auto at_boundary(const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const UserError& error) {
    throw Error(ErrorKind::user, error.what());
  } catch (const RuntimeFailure& error) {
    throw Error(ErrorKind::runtime, error.what());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::runtime, "out of memory");
  } catch (const std::exception& error) {
    throw Error(ErrorKind::internal, error.what());
  }
}

}  // namespace optimus
