// Memory layout of the buffer for the activations of one block and micro-batch: the offset of each tensor.
// The memory model sums the sizes of these buffers, and the engine places its tensors at the same offsets, so
// predicted and allocated memory are equal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/operations.h"

namespace optimus {

// Every tensor and every buffer starts at a multiple of this number of bytes.
inline constexpr std::int64_t kAlignment = 256;
inline std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Placement of a row-major tensor [rows, columns]. `row_stride` is the number of elements from one row to the
// next. It is larger than `columns` for a tensor inside a fused matrix.
struct TensorPlacement {
  std::string name;
  std::int64_t offset = 0;  // bytes from the start of the buffer
  std::int64_t rows = 0, columns = 0, row_stride = 0;
  SavedType type = SavedType::activation;
  // Number of rows that memory is reserved for. It can exceed `rows`, because the slices of all ranks in a
  // group have equal length.
  std::int64_t padded_rows = 0;
};

struct ActivationBuffer {
  std::vector<TensorPlacement> places;
  Bytes bytes;
};

// Lays out tensors in the order in which they are added. Tensors with the same `matrix` become columns of one
// fused matrix, at the position of the first of these tensors. The matrix also has a placement under its own
// name.
class ActivationBufferBuilder {
 public:
  explicit ActivationBufferBuilder(int activation_bytes) : activation_bytes_(activation_bytes) {}
  // `padded_rows` must be at least `rows`, or 0 for no padding.
  void add(const std::string& name, std::int64_t rows, std::int64_t columns, SavedType type,
           const std::string& matrix = "", std::int64_t padded_rows = 0);
  ActivationBuffer take();

 private:
  struct Matrix {
    std::string name;
    std::vector<std::size_t> places;
    std::int64_t columns = 0;
  };
  int activation_bytes_;
  std::vector<TensorPlacement> places_;
  std::vector<Matrix> matrices_;  // in the order of their first tensors
};

}  // namespace optimus
