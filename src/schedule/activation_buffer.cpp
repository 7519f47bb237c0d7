// See activation_buffer.h.
#include "schedule/activation_buffer.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

void ActivationBufferBuilder::add(const std::string& name, std::int64_t rows, std::int64_t columns,
                                  SavedType type, const std::string& matrix, std::int64_t padded_rows) {
  auto at = std::find_if(matrices_.begin(), matrices_.end(),
                         [&](const Matrix& other) { return !matrix.empty() && other.name == matrix; });
  if (at == matrices_.end()) at = matrices_.insert(at, {matrix, {}, 0});
  at->places.push_back(places_.size());
  places_.push_back({name, at->columns, rows, columns, 0, type, std::max(rows, padded_rows)});
  at->columns += columns;
}

ActivationBuffer ActivationBufferBuilder::take() {
  std::int64_t end = 0;
  for (const Matrix& matrix : matrices_) {
    const TensorPlacement first = places_[matrix.places.front()];
    const int width = bytes_per_element(first.type, activation_bytes_);
    for (const std::size_t index : matrix.places) {
      TensorPlacement& tensor_placement = places_[index];
      ensure(tensor_placement.rows == first.rows && tensor_placement.padded_rows == first.padded_rows &&
                 tensor_placement.type == first.type,
             "{} does not fit its matrix", tensor_placement.name);
      tensor_placement.offset = end + tensor_placement.offset * width;
      tensor_placement.row_stride = matrix.columns;
    }
    if (!matrix.name.empty()) {
      TensorPlacement full_placement = places_[matrix.places.front()];
      full_placement.name = matrix.name, full_placement.columns = matrix.columns;
      places_.push_back(std::move(full_placement));
    }
    end += aligned(first.padded_rows * matrix.columns * width);
  }
  return {std::move(places_), Bytes(end)};
}

}  // namespace optimus
