// Precompiled header for all sources that use libtorch. It contains the tensor type, which takes seconds to
// compile.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
