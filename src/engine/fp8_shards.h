// Gathers the shards of a layer's weights in fp8. Used with ZeRO 3 if only fp8 GEMMs read the layer's
// matrices. Each member rounds and measures its own shard, so a gather moves only one byte per element.
// Rounding a weight again in the GEMM does not change it.
//
//   bytes of a member    | q k v out up down: e4m3, a byte each | norms, biases: unchanged |
//                        each tensor is 16-byte aligned
//
// Read next: state_exchange.h, which gathers the shards, and fp8_scales.h, which has the scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "engine/block_shape.h"
#include "engine/fp8_scales.h"
#include "kernels/kernels.h"

namespace optimus {

class Fp8Shards {
 public:
  Fp8Shards(const BlockShape& shape, int layer, at::ScalarType element);

  std::int64_t bytes() const { return bytes_; }  // size of one member's packed shard
  // Packs `own_shard`, this member's flat shard, into `to`, which has bytes() bytes. Measures matrices and
  // rounds them to fp8.
  void pack(const at::Tensor& own_shard, Fp8Scales& scales, const Kernels& kernels,
            const at::Tensor& to) const;
  // Unpacks `gathered`, the packed shards of all members, to `whole`, which is flat, laid out like whole
  // buffers, and of the element type. All values of matrices are representable in fp8.
  void unpack(const at::Tensor& gathered, const Fp8Scales& scales, const at::Tensor& whole) const;

 private:
  struct Piece {
    LocalTensor local_tensor;
    int slot = -1;  // fp8 slot of its GEMM's weight; -1 if not converted to fp8
    std::int64_t offset = 0;
  };
  // Returns a view of the first `rows` rows of a piece in `bytes`, which is the packed shard of one member.
  at::Tensor rows_of(const at::Tensor& bytes, const Piece& piece, std::int64_t rows) const;

  const int num_shards_;
  const at::ScalarType element_;
  std::vector<Piece> pieces_;
  std::int64_t bytes_ = 0;
};

}  // namespace optimus
