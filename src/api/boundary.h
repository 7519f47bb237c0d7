// The boundary of the library: exceptions of the program become optimus::Error here.
#pragma once

#include <exception>
#include <new>

#include "base/error.h"
#include "optimus/error.h"

namespace optimus {

// Runs `work` and translates what it throws. v0::Error is the exception of the library; Error without its
// namespace would also name the base class of the program's exceptions.
template <typename Work>
auto at_boundary(const Work& work) {
  try {
    return work();
  } catch (const v0::Error&) {
    throw;
  } catch (const UserError& error) {
    throw v0::Error(ErrorKind::user, error.what());
  } catch (const RuntimeFailure& error) {
    throw v0::Error(ErrorKind::runtime, error.what());
  } catch (const std::bad_alloc&) {
    throw v0::Error(ErrorKind::runtime, "out of memory");
  } catch (const std::exception& error) {
    throw v0::Error(ErrorKind::internal, error.what());
  }
}

}  // namespace optimus
