// Code shared by the forward and backward passes of the host attention kernel: heads as rows, scratch memory
// in the wider type, masks, and work distribution over threads.
//
// The kernel computes pieces of scores (ring_attention.h). It treats attention over whole sequences as a ring
// with one part. Scratch memory is padded so that GEMMs need no remainder loops. Results for padded queries
// are computed and discarded; padded keys have probability zero. Read next: host_matmul.h for the GEMMs, then
// host_attention_forward.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/box.h"
#include "kernels/attention.h"
#include "kernels/host_dropout.h"
#include "kernels/host_matmul.h"
#include "kernels/host_rows.h"
#include "kernels/ring_attention.h"

namespace optimus {

inline constexpr std::int64_t kBlock = 64;  // queries or keys per block; the GEMMs of a block fit into L1

inline std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

// One head of a [rows, heads, head_dim] tensor.
template <typename T>
struct Head {
  T* data;
  std::int64_t row_stride, head_dim;

  Head(const at::Tensor& tensor, std::int64_t first_row, std::int64_t head)
      : data(tensor.data_ptr<T>() + first_row * tensor.stride(0) + head * tensor.stride(1)),
        row_stride(tensor.stride(0)),
        head_dim(tensor.size(2)) {}
  T* row(std::int64_t index) const { return data + index * row_stride; }
};

// A [rows, width] block of scratch memory, whose width is padded to whole vectors.
template <typename Number>
class Scratch {
 public:
  Scratch(std::int64_t rows, std::int64_t width)
      : stride_(round_up(width, kVectorLanes<Number>)),
        values_(static_cast<std::size_t>(round_up(rows, kTileRows) * stride_), Number{0}) {}
  Number* row(std::int64_t index) { return values_.data() + index * stride_; }
  const Number* row(std::int64_t index) const { return values_.data() + index * stride_; }
  std::int64_t stride() const { return stride_; }
  void zero(std::int64_t rows) { std::fill_n(values_.data(), rows * stride_, Number{0}); }
  Block<Number> block(std::int64_t first_row = 0) { return {row(first_row), stride_}; }
  Block<const Number> right(std::int64_t first_row = 0) const { return {row(first_row), stride_}; }
  LeftFactor<Number> left(std::int64_t first_row = 0) const { return {row(first_row), stride_, 1}; }
  LeftFactor<Number> transposed() const { return {values_.data(), 1, stride_}; }

 private:
  std::int64_t stride_;
  std::vector<Number> values_;
};

// Copies rows `rows` of a head into scratch memory, starting at its row `offset`.
template <typename T>
void copy_in(const Head<T>& head, Span rows, Scratch<Wide<T>>& to, std::int64_t offset = 0) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = head.row(r);
    Wide<T>* row = to.row(offset + r - rows.begin);
#pragma omp simd
    for (std::int64_t d = 0; d < head.head_dim; ++d) row[d] = load(from[d]);
  }
}

// Sets to[d, key] = head[key, d]. This is the right-hand operand of the scores. Columns beyond the block's
// keys keep their old values and are masked later.
template <typename T>
void copy_in_transposed(const Head<T>& head, Span rows, Scratch<Wide<T>>& to) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const T* from = head.row(r);
    Wide<T>* column = to.row(0) + (r - rows.begin);
    for (std::int64_t d = 0; d < head.head_dim; ++d) column[d * to.stride()] = load(from[d]);
  }
}

template <typename T>
void copy_out(const Scratch<Wide<T>>& from, std::int64_t offset, Wide<T> factor, const Head<T>& head,
              std::int64_t row) {
  T* to = head.row(row);
  const Wide<T>* values = from.row(offset);
#pragma omp simd
  for (std::int64_t d = 0; d < head.head_dim; ++d) store(to[d], values[d] * factor);
}

// The masks of one head of a piece, and the keys that each query attends to. Indices of queries and keys are
// relative to the start of the piece.
struct HeadPiece {
  std::int64_t num_queries = 0, num_keys = 0;
  bool is_causal = true;
  double scale = 1;
  std::int64_t first_query = 0, first_key = 0, max_positions = 0;
  RandomKey key{};

  HeadPiece(const RingTask& task, const RingPiece& piece, std::int64_t query_head)
      : num_queries(piece.queries.size()),
        num_keys(piece.keys.size()),
        is_causal(piece.is_causal),
        scale(task.shape.scale),
        first_query(piece.first_query),
        first_key(piece.first_key),
        max_positions(task.dropout.max_positions) {
    if (task.dropout.rate == 0) return;
    const std::int64_t sample = task.dropout.samples[static_cast<std::size_t>(piece.sequence)];
    key = task.dropout.key.derive(static_cast<std::uint64_t>(sample))
              .derive(static_cast<std::uint64_t>(task.dropout.first_head + query_head));
  }
  // Returns how many of `keys` `query` attends to.
  std::int64_t num_visible_keys(std::int64_t query, Span keys) const {
    return is_causal ? std::clamp<std::int64_t>(query + 1 - keys.begin, 0, keys.size()) : keys.size();
  }
  // Sets retained[j] to whether dropout retains (1) or drops (0) the probability of key `at_key` + j for
  // `query`.
  void fill_mask(const DropoutRule& rule, std::int64_t query, std::int64_t at_key,
                 std::span<std::uint8_t> retained) const {
    const std::int64_t element = (first_query + query) * max_positions + first_key + at_key;
    fill_retained(key, static_cast<std::uint64_t>(element), rule, retained);
  }
};

// row[j] = retained[j] ? row[j] * scale : 0
template <typename Number>
void apply_mask(const std::uint8_t* retained, Number scale, std::int64_t count, Number* row) {
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j) row[j] *= retained[j] != 0 ? scale : Number{0};
}

// The tensors of a call. The forward pass does not use dout, dq, dk and dv.
struct AttentionTensors {
  const at::Tensor &dout, &q, &k, &v, &out, &logsumexp, &dq, &dk, &dv;
};

// How a call stores its results.
enum class OutputMode {
  written,  // written in the element type, because the task has all keys
  added     // added, in the wide type, to the results of earlier ring steps
};

template <typename T>
void add_out(const Scratch<Wide<T>>& from, std::int64_t offset, const Head<T>& head, std::int64_t row) {
  T* to = head.row(row);
  const Wide<T>* values = from.row(offset);
#pragma omp simd
  for (std::int64_t d = 0; d < head.head_dim; ++d) to[d] += values[d];
}

template <typename W>
W* statistics_of(const RingTask& task, const RingPiece& piece, std::int64_t head,
                 const at::Tensor& logsumexp) {
  const std::int64_t row = (piece.sequence * task.shape.heads + head) * task.own_length;
  return flat_data<W>(logsumexp) + row + piece.queries.begin;
}

inline std::int64_t first_query_row(const RingTask& task, const RingPiece& piece) {
  return piece.sequence * task.own_length + piece.queries.begin;
}
inline std::int64_t first_key_row(const RingTask& task, const RingPiece& piece) {
  return piece.sequence * task.key_length + piece.keys.begin;
}

// Both functions divide a task's pieces into ranges of consecutive pieces. In pieces_by_queries, all pieces
// of a range have the same queries. In independent_ranges, pieces of different ranges share neither queries
// nor keys, so two ranges never write to the same row.
std::vector<Span> pieces_by_queries(const std::vector<RingPiece>& pieces);
std::vector<Span> independent_ranges(const std::vector<RingPiece>& pieces);

// Returns the number of scores that are computed for a piece, by which the work is balanced.
std::int64_t num_scores(const RingPiece& piece);

// Divides items into one range per thread, so that ranges have about equal cost, and calls body(range) on
// each thread.
void parallel_for_by_cost(const std::vector<std::int64_t>& costs, const std::function<void(Span)>& body);

void host_attention_forward(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode);
void host_attention_backward(const RingTask& task, const AttentionTensors& tensors, OutputMode output_mode);

}  // namespace optimus
