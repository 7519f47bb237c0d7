// See sum.h.
#include "comm/sum.h"

#include <ATen/ops/maximum.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "comm/race_detector.h"

namespace optimus {
namespace {

template <typename T>
T larger(T a, T b) {
  return a > b || a != a ? a : b;
}

// Processes a row in blocks, so that the sums stay in the L1 cache.
template <typename T>
void sum_rows(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind) {
  using Wide = std::conditional_t<std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>, float, T>;
  constexpr std::int64_t kBlock = 1024;
  std::array<Wide, kBlock> sums;
  T* const out = static_cast<T*>(to.data_ptr());
  const std::int64_t size = to.numel();
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, size - begin);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const T* const in = static_cast<const T*>(pieces[p].const_data_ptr()) + begin;
      if (p == 0)
        for (std::int64_t i = 0; i < count; ++i) sums[i] = static_cast<Wide>(in[i]);
      else if (kind == ReduceOp::sum)
        for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<Wide>(in[i]);
      else
        for (std::int64_t i = 0; i < count; ++i) sums[i] = larger(sums[i], static_cast<Wide>(in[i]));
    }
    for (std::int64_t i = 0; i < count; ++i) out[begin + i] = c10::convert<T>(sums[i]);
  }
}

void sum_on_host(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind) {
  for (const at::Tensor& piece : pieces) announce_read(piece.const_data_ptr(), piece.nbytes());
  announce_write(to.data_ptr(), to.nbytes());
  switch (to.scalar_type()) {
    case at::kDouble:
      return sum_rows<double>(pieces, to, kind);
    case at::kFloat:
      return sum_rows<float>(pieces, to, kind);
    case at::kBFloat16:
      return sum_rows<c10::BFloat16>(pieces, to, kind);
    case at::kHalf:
      return sum_rows<c10::Half>(pieces, to, kind);
    case at::kLong:
      return sum_rows<std::int64_t>(pieces, to, kind);
    case at::kInt:
      return sum_rows<std::int32_t>(pieces, to, kind);
    default:
      ensure(false, "cannot sum elements of type {}", c10::toString(to.scalar_type()));
  }
}

void sum_on_device(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind) {
  const bool is_half = to.scalar_type() == at::kBFloat16 || to.scalar_type() == at::kHalf;
  at::Tensor sums = pieces[0].to(to.device(), is_half ? at::kFloat : to.scalar_type(), true, /*copy=*/true);
  for (const at::Tensor& piece : pieces.subspan(1)) {
    const at::Tensor local_piece = piece.to(to.device(), sums.scalar_type(), true);
    if (kind == ReduceOp::sum)
      sums.add_(local_piece);
    else
      sums.copy_(at::maximum(sums, local_piece));
  }
  to.copy_(sums);
}

}  // namespace

void sum_in_order(std::span<const at::Tensor> pieces, const at::Tensor& to, ReduceOp kind) {
  ensure(!pieces.empty(), "a sum needs at least one tensor");
  for (const at::Tensor& piece : pieces)
    ensure(piece.numel() == to.numel() && piece.scalar_type() == to.scalar_type(),
           "cannot sum {} elements of type {} into {} elements of type {}", piece.numel(),
           c10::toString(piece.scalar_type()), to.numel(), c10::toString(to.scalar_type()));
  if (pieces.size() == 1) return copy_row(pieces[0], to);
  if (to.numel() == 0) return;
  to.is_cpu() ? sum_on_host(pieces, to, kind) : sum_on_device(pieces, to, kind);
}

void copy_row(const at::Tensor& from, const at::Tensor& to) {
  ensure(from.nbytes() == to.nbytes() && from.scalar_type() == to.scalar_type(),
         "cannot copy a tensor of {} bytes to one of {} bytes: sizes or types differ", from.nbytes(),
         to.nbytes());
  if (from.nbytes() == 0 || from.const_data_ptr() == to.const_data_ptr()) return;
  if (!from.is_cpu() || !to.is_cpu()) {
    to.copy_(from, /*non_blocking=*/from.is_cuda() && to.is_cuda());
    return;
  }
  announce_read(from.const_data_ptr(), from.nbytes());
  announce_write(to.data_ptr(), to.nbytes());
  std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

}  // namespace optimus
