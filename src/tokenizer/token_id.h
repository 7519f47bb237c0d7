// The type of token ids in memory.
#pragma once

#include <cstdint>

namespace optimus {

using TokenId = std::int32_t;

}  // namespace optimus
