// Atomically writes a small file that only this user can read. Used for store addresses, which contain access
// tokens.
#pragma once

#include <string>

#include "base/file.h"

namespace optimus {

// Throws RuntimeFailure.
void write_private_file(const Path& path, const std::string& text);

}  // namespace optimus
