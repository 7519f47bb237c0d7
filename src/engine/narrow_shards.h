// A layer's shards on their way in 8 bits, where products in 8 bits are all that reads its matrices (ZeRO 3): each member rounds its own
// shard of them and measures it, so that a gather moves a byte an element, and a product that rounds them once more changes nothing.
//
//   of a member    | q k v out up down: e4m3, a byte each | norms, biases: as they are |      each tensor at 16 bytes
//
// Read next: state_exchange.h, who gathers; fp8_scales.h, where the scales are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/block_shape.h"
#include "engine/fp8_scales.h"
#include "kernels/kernels.h"

namespace optimus {

class NarrowShards {
 public:
  NarrowShards(const BlockShape& shape, int layer, at::ScalarType element);

  std::int64_t bytes() const { return bytes_; }  // of a member
  // own: the member's shard, flat. to: `bytes` bytes.
  void pack(const at::Tensor& own, Fp8Scales& scales, const Kernels& kernels, const at::Tensor& to) const;
  // all: the members' bytes one behind the other. whole: flat, in whole order; matrices as 8 bits hold them.
  void unpack(const at::Tensor& all, const Fp8Scales& scales, const at::Tensor& whole) const;

 private:
  struct Piece {
    HeldTensor held;
    int slot = -1;  // of its product's weight; -1: it goes as it is
    std::int64_t place = 0;
  };
  // The first `rows` rows of a piece, of one member.
  at::Tensor rows_of(const at::Tensor& bytes, const Piece& piece, std::int64_t rows) const;

  const int num_shards_;
  const at::ScalarType element_;
  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;
};

}  // namespace optimus
