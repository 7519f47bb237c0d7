// The type of token ids in memory and in token files.
#pragma once

#include <cstdint>

namespace optimus {

using TokenId = std::int32_t;

}  // namespace optimus
