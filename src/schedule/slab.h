// A slab: one piece of memory for the activations of one block and micro-batch, and where each tensor lies in it. The memory
// model adds up slabs, the engine makes its tensors from the same places, so what is predicted is what is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/operations.h"

namespace optimus {

// Every tensor, and every buffer, begins at a multiple of this.
inline constexpr std::int64_t kAlignment = 256;
inline std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// [rows, columns], row-major with row_stride elements from one row to the next (more than columns inside a joint matrix).
struct Place {
  std::string name;
  std::int64_t offset = 0;  // bytes from the slab's begin
  std::int64_t rows = 0, columns = 0, row_stride = 0;
  KeptType type = KeptType::activation;
  std::int64_t padded_rows = 0;  // that memory is there for: slices of a group are equally long
};

struct Slab {
  std::vector<Place> places;
  Bytes bytes;
};

// Lays tensors out in order. Those that name one matrix become its columns, at the place of the first; the matrix has a
// place of its own, by its name.
class SlabBuilder {
 public:
  explicit SlabBuilder(int activation_bytes) : activation_bytes_(activation_bytes) {}
  // padded_rows: at least rows; 0: as many.
  void add(const std::string& name, std::int64_t rows, std::int64_t columns, KeptType type,
           const std::string& matrix = "", std::int64_t padded_rows = 0);
  Slab take();

 private:
  struct Matrix {
    std::string name;
    std::vector<std::size_t> places;
    std::int64_t columns = 0;
  };
  int activation_bytes_;
  std::vector<Place> places_;
  std::vector<Matrix> matrices_;  // in order of their first tensor
};

}  // namespace optimus
