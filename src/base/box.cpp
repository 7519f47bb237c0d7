// Implements the text forms of shapes and boxes; the algebra is in box.h.
#include "base/box.h"

#include <fmt/format.h>

#include <vector>

namespace optimus {

std::string text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims.begin(), shape.dims.begin() + shape.num_dims, ", "));
}

std::string text(const Box& box) {
  std::vector<std::string> spans;
  for (int d = 0; d < box.num_dims; ++d) spans.push_back(fmt::format("{}:{}", box[d].begin, box[d].end));
  return fmt::format("[{}]", fmt::join(spans, ", "));
}

}  // namespace optimus
