// A small file that only this user can read, written atomically. Used for the addresses of stores with their
// access tokens.
#pragma once

#include <string>

#include "base/file.h"

namespace optimus {

// Throws RuntimeFailure.
void write_private_file(const Path& path, const std::string& text);

}  // namespace optimus
