// See narrow_shards.h.
#include "engine/narrow_shards.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "kernels/fp8.h"

namespace optimus {
namespace {

constexpr std::int64_t kPieceAlignment = 16;

std::optional<LayerProduct> product_of(std::string_view name) {
  constexpr std::pair<std::string_view, LayerProduct> kMatrices[] = {
      {".attention.q.weight", LayerProduct::qkv}, {".attention.k.weight", LayerProduct::qkv},
      {".attention.v.weight", LayerProduct::qkv}, {".attention.out.weight", LayerProduct::out},
      {".mlp.gate.weight", LayerProduct::up},     {".mlp.up.weight", LayerProduct::up},
      {".mlp.down.weight", LayerProduct::down},
  };
  for (const auto& [ending, product] : kMatrices)
    if (name.ends_with(ending)) return product;
  return std::nullopt;
}

}  // namespace

NarrowShards::NarrowShards(const BlockShape& shape, int layer, at::ScalarType element)
    : num_shards_(shape.num_shards), element_(element) {
  for (const HeldTensor& held : shape.tensors) {
    if (held.rows == 0 || held.row == 0) continue;
    const std::optional<LayerProduct> product = product_of(held.name);
    const std::int64_t size = product ? 1 : static_cast<std::int64_t>(at::elementSize(element));
    pieces_.push_back({held, product ? fp8_slot(layer, *product, Fp8Operand::weight) : -1, bytes_});
    bytes_ += (held.shard_rows * held.row * size + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  }
}

at::Tensor NarrowShards::rows_of(const at::Tensor& bytes, const Piece& piece, std::int64_t rows) const {
  const at::ScalarType type = piece.slot < 0 ? element_ : fp8_type(Fp8Operand::weight);
  const std::int64_t count = rows * piece.held.row * static_cast<std::int64_t>(at::elementSize(type));
  return bytes.narrow(0, piece.place, count).view(type).view({rows, piece.held.row});
}

void NarrowShards::pack(const at::Tensor& own, Fp8Scales& scales, const Kernels& kernels,
                        const at::Tensor& to) const {
  for (const Piece& piece : pieces_) {
    const HeldTensor& held = piece.held;
    const at::Tensor from =
        own.narrow(0, held.shard_offset, held.shard_rows * held.row).view({held.shard_rows, held.row});
    at::Tensor packed = rows_of(to, piece, held.shard_rows), transposed, maximum;
    if (piece.slot < 0) {
      packed.copy_(from);
    } else {
      maximum = scales.maximum(piece.slot);
      kernels.quantise(Fp8Operand::weight, from, scales.scale(piece.slot), packed, transposed, maximum);
    }
  }
}

void NarrowShards::unpack(const at::Tensor& all, const Fp8Scales& scales, const at::Tensor& whole) const {
  for (const Piece& piece : pieces_) {
    const HeldTensor& held = piece.held;
    for (int member = 0; member < num_shards_; ++member) {
      const std::int64_t first = member * held.shard_rows,
                         rows = std::min(held.rows - first, held.shard_rows);
      if (rows <= 0) break;
      const at::Tensor to =
          whole.narrow(0, held.offset + first * held.row, rows * held.row).view({rows, held.row});
      to.copy_(rows_of(all.narrow(0, member * bytes_, bytes_), piece, rows));
      if (piece.slot >= 0) to.mul_(scales.inverse(piece.slot));
    }
  }
}

}  // namespace optimus
