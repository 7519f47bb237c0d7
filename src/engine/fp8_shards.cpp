// See fp8_shards.h.
#include "engine/fp8_shards.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "kernels/fp8.h"

namespace optimus {
namespace {

constexpr std::int64_t kPieceAlignment = 16;

std::optional<LayerGemm> layer_gemm_of(std::string_view name) {
  constexpr std::pair<std::string_view, LayerGemm> kMatrices[] = {
      {".attention.q.weight", LayerGemm::qkv}, {".attention.k.weight", LayerGemm::qkv},
      {".attention.v.weight", LayerGemm::qkv}, {".attention.out.weight", LayerGemm::out},
      {".mlp.gate.weight", LayerGemm::up},     {".mlp.up.weight", LayerGemm::up},
      {".mlp.down.weight", LayerGemm::down},
  };
  for (const auto& [ending, layer_gemm] : kMatrices)
    if (name.ends_with(ending)) return layer_gemm;
  return std::nullopt;
}

}  // namespace

Fp8Shards::Fp8Shards(const BlockShape& shape, int layer, at::ScalarType element)
    : num_shards_(shape.num_shards), element_(element) {
  for (const LocalTensor& local_tensor : shape.tensors) {
    if (local_tensor.rows == 0 || local_tensor.row == 0) continue;
    const std::optional<LayerGemm> layer_gemm = layer_gemm_of(local_tensor.name);
    const std::int64_t size = layer_gemm ? 1 : static_cast<std::int64_t>(at::elementSize(element));
    pieces_.push_back(
        {local_tensor, layer_gemm ? fp8_slot(layer, *layer_gemm, Fp8Operand::weight) : -1, bytes_});
    bytes_ += (local_tensor.shard_rows * local_tensor.row * size + kPieceAlignment - 1) / kPieceAlignment *
              kPieceAlignment;
  }
}

at::Tensor Fp8Shards::rows_of(const at::Tensor& bytes, const Piece& piece, std::int64_t rows) const {
  const at::ScalarType type = piece.slot < 0 ? element_ : fp8_type(Fp8Operand::weight);
  const std::int64_t count = rows * piece.local_tensor.row * static_cast<std::int64_t>(at::elementSize(type));
  return bytes.narrow(0, piece.offset, count).view(type).view({rows, piece.local_tensor.row});
}

void Fp8Shards::pack(const at::Tensor& own_shard, Fp8Scales& scales, const Kernels& kernels,
                     const at::Tensor& to) const {
  for (const Piece& piece : pieces_) {
    const LocalTensor& local_tensor = piece.local_tensor;
    const at::Tensor from =
        own_shard.narrow(0, local_tensor.shard_offset, local_tensor.shard_rows * local_tensor.row)
            .view({local_tensor.shard_rows, local_tensor.row});
    at::Tensor packed = rows_of(to, piece, local_tensor.shard_rows), transposed, maximum;
    if (piece.slot < 0) {
      packed.copy_(from);
    } else {
      maximum = scales.maximum(piece.slot);
      kernels.quantize(Fp8Operand::weight, from, scales.scale(piece.slot), packed, transposed, maximum);
    }
  }
}

void Fp8Shards::unpack(const at::Tensor& gathered, const Fp8Scales& scales, const at::Tensor& whole) const {
  for (const Piece& piece : pieces_) {
    const LocalTensor& local_tensor = piece.local_tensor;
    for (int member = 0; member < num_shards_; ++member) {
      const std::int64_t first = member * local_tensor.shard_rows,
                         rows = std::min(local_tensor.rows - first, local_tensor.shard_rows);
      if (rows <= 0) break;
      const at::Tensor to =
          whole.narrow(0, local_tensor.offset + first * local_tensor.row, rows * local_tensor.row)
              .view({rows, local_tensor.row});
      to.copy_(rows_of(gathered.narrow(0, member * bytes_, bytes_), piece, rows));
      if (piece.slot >= 0) to.mul_(scales.inverse(piece.slot));
    }
  }
}

}  // namespace optimus
