// Box: a half-open, axis-aligned part of an n-dimensional index space with n <= 4.
//
// Boxes are the unit in which parameters are initialized, stored, transferred and saved: "rows 0..128,
// columns 64..128 of q". A box is a plain value without allocation, because the layouts of large clusters
// contain millions of them.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

namespace optimus {

// The half-open range begin <= index < end.
struct Span {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  constexpr auto operator<=>(const Span&) const = default;
};

inline constexpr int kMaxDims = 4;

struct Shape {
  int num_dims = 0;
  std::array<std::int64_t, kMaxDims> dims{};

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> sizes) : num_dims(static_cast<int>(sizes.size())) {
    std::copy(sizes.begin(), sizes.end(), dims.begin());
  }
  constexpr std::int64_t operator[](int dim) const { return dims[static_cast<std::size_t>(dim)]; }
  constexpr std::int64_t& operator[](int dim) { return dims[static_cast<std::size_t>(dim)]; }
  constexpr std::int64_t num_elements() const {
    std::int64_t product = 1;
    for (int d = 0; d < num_dims; ++d) product *= (*this)[d];
    return product;
  }
  constexpr auto operator<=>(const Shape&) const = default;
};

struct Box {
  int num_dims = 0;
  std::array<Span, kMaxDims> dims{};

  constexpr Box() = default;
  constexpr Box(std::initializer_list<Span> spans) : num_dims(static_cast<int>(spans.size())) {
    std::copy(spans.begin(), spans.end(), dims.begin());
  }
  // The box that covers an entire tensor of this shape.
  constexpr explicit Box(const Shape& shape) : num_dims(shape.num_dims) {
    for (int d = 0; d < num_dims; ++d) (*this)[d] = {0, shape[d]};
  }
  constexpr const Span& operator[](int dim) const { return dims[static_cast<std::size_t>(dim)]; }
  constexpr Span& operator[](int dim) { return dims[static_cast<std::size_t>(dim)]; }
  constexpr std::int64_t num_elements() const {
    std::int64_t product = 1;
    for (int d = 0; d < num_dims; ++d) product *= (*this)[d].size();
    return product;
  }
  constexpr bool is_empty() const { return num_elements() == 0; }
  constexpr Shape shape() const {
    Shape result;
    result.num_dims = num_dims;
    for (int d = 0; d < num_dims; ++d) result[d] = (*this)[d].size();
    return result;
  }
  constexpr bool contains(const Box& other) const {
    for (int d = 0; d < num_dims; ++d)
      if (other[d].begin < (*this)[d].begin || other[d].end > (*this)[d].end) return false;
    return true;
  }
  constexpr auto operator<=>(const Box&) const = default;
};

// Returns the intersection, or nullopt if the boxes do not overlap.
constexpr std::optional<Box> intersect(const Box& a, const Box& b) {
  Box result = a;
  for (int d = 0; d < a.num_dims; ++d) {
    result[d] = {std::max(a[d].begin, b[d].begin), std::min(a[d].end, b[d].end)};
    if (result[d].begin >= result[d].end) return std::nullopt;
  }
  return result;
}

std::string text(const Shape& shape);  // "[4096, 1024]"
std::string text(const Box& box);      // "[0:128, 64:128]"

}  // namespace optimus
