// Embedding tables with their gradients, and rotary positions.
#include "kernels/host.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

template <typename Id>
void ensure_ids_in_range(const Id* ids, std::int64_t count, std::int64_t bound, const char* id_kind,
                         Id lowest = 0) {
  for (std::int64_t i = 0; i < count; ++i)
    ensure(ids[i] >= lowest && ids[i] < bound, "{} {} in row {} is not below the limit {}", id_kind, ids[i],
           i, bound);
}

// The token and position ids of all rows. The constructor checks them against the sizes of their tables.
struct Ids {
  const std::int64_t* tokens;
  const std::int32_t* positions;  // null if there is no position table

  Ids(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& token_table,
      const at::Tensor& position_table)
      : tokens(flat_data<std::int64_t>(ids)),
        positions(position_table.defined() ? flat_data<std::int32_t>(position_ids) : nullptr) {
    if (token_table.defined())
      ensure_ids_in_range(tokens, ids.numel(), token_table.size(0), "token", std::int64_t{-1});
    if (positions != nullptr) ensure_ids_in_range(positions, ids.numel(), position_table.size(0), "position");
  }
};

template <typename T>
void add_table_rows(const T* token, const T* position, const T* type, std::int64_t width, T* out) {
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    Wide<T> sum = token == nullptr ? Wide<T>{0} : load(token[j]);
    if (position != nullptr) sum += load(position[j]);
    if (type != nullptr) sum += load(type[j]);
    store(out[j], sum);
  }
}

template <typename T>
void add_to(Wide<T>* sum, const T* row, std::int64_t begin, std::int64_t end) {
#pragma omp simd
  for (std::int64_t j = begin; j < end; ++j) sum[j] += load(row[j]);
}

template <typename T>
void rotate_head(T* head, const Wide<T>* cosine, const Wide<T>* sine, Wide<T> direction, std::int64_t half) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const Wide<T> a = load(head[i]), b = load(head[i + half]), signed_sine = direction * sine[i];
    store(head[i], a * cosine[i] - b * signed_sine);
    store(head[i + half], b * cosine[i] + a * signed_sine);
  }
}

}  // namespace

void HostKernels::rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                       const at::Tensor& positions, bool is_backward) const {
  ensure(x.dim() == 3 && x.size(2) == 2 * cosine.size(1),
         "rotary embedding: expected half as many angles as the head dimension {}, got {}", x.size(-1),
         cosine.size(1));
  const auto* row_positions = flat_data<std::int32_t>(positions);
  ensure_ids_in_range(row_positions, positions.numel(), cosine.size(0), "position");
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<Wide<T>> cosines(cosine), sines(sine);
    T* data = x.data_ptr<T>();
    ensure(x.stride(2) == 1, "expected stride 1 between the elements of a head, got {}", x.stride(2));
    const std::int64_t num_heads = x.size(1), row_stride = x.stride(0), head_stride = x.stride(1);
    for_each_row(x.size(0), num_heads * x.size(2), [&](std::int64_t r) {
      for (std::int64_t head = 0; head < num_heads; ++head)
        rotate_head(data + r * row_stride + head * head_stride, cosines.row(row_positions[r]),
                    sines.row(row_positions[r]), static_cast<Wide<T>>(is_backward ? -1 : 1), cosines.width);
    });
  });
}

void HostKernels::embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                            const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const {
  const Ids at(ids, position_ids, tokens, positions);
  with_element_type(out.scalar_type(), [&]<typename T>(T) {
    const Rows<T> token_table(tokens), position_table(positions), type_table(types), to(out);
    for_each_row(ids.numel(), to.width, [&](std::int64_t r) {
      add_table_rows(at.tokens[r] < 0 ? nullptr : token_table.row(at.tokens[r]),
                     at.positions == nullptr ? nullptr : position_table.row(at.positions[r]), type_table.data,
                     to.width, to.row(r));
    });
  });
}

// Threads divide the columns among themselves, so that additions to each table row happen in the order of
// tokens.
void HostKernels::embedding_backward(const at::Tensor& dout, const at::Tensor& ids,
                                     const at::Tensor& position_ids, at::Tensor& tokens,
                                     at::Tensor& positions, at::Tensor& types) const {
  const Ids at(ids, position_ids, tokens, positions);
  constexpr std::int64_t kMinColumns = 32;  // per thread, two cache lines
  with_element_type(dout.scalar_type(), [&]<typename T>(T) {
    using W = Wide<T>;
    const Rows<T> from(dout);
    const Rows<W> token_table(tokens), position_table(positions), type_table(types);
    at::parallel_for(0, from.width, kMinColumns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < from.num_rows(); ++r) {
        if (token_table.data != nullptr && at.tokens[r] >= 0)
          add_to(token_table.row(at.tokens[r]), from.row(r), begin, end);
        if (at.positions != nullptr) add_to(position_table.row(at.positions[r]), from.row(r), begin, end);
        if (type_table.data != nullptr) add_to(type_table.data, from.row(r), begin, end);
      }
    });
  });
}

}  // namespace optimus
