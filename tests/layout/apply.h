// Executes the shares of all ranks on real arrays, step by step as layout/diff.h prescribes, and tracks the
// memory. Written only from the header, independent of the implementation of diff.
#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "layout/diff.h"
#include "layout/layout.h"

namespace optimus {

struct Array {
  Box box;
  std::vector<std::int64_t> values;  // row-major in the box
};

// [rank][tensor] -> the arrays that the rank holds.
using World = std::vector<std::vector<std::vector<Array>>>;

// Calls use(index) for every index of the box, row-major.
template <typename Use>
void for_each_index(const Box& box, const Use& use) {
  std::array<std::int64_t, kMaxDims> index{};
  if (box.is_empty()) return;
  for (int d = 0; d < box.num_dims; ++d) index[static_cast<std::size_t>(d)] = box[d].begin;
  while (true) {
    use(index);
    int d = box.num_dims - 1;
    for (; d >= 0; --d) {
      auto& at = index[static_cast<std::size_t>(d)];
      if (++at < box[d].end) break;
      at = box[d].begin;
    }
    if (d < 0) return;
  }
}

inline std::size_t offset_in(const Box& box, const std::array<std::int64_t, kMaxDims>& index) {
  std::int64_t offset = 0;
  for (int d = 0; d < box.num_dims; ++d)
    offset = offset * box[d].size() + (index[static_cast<std::size_t>(d)] - box[d].begin);
  return static_cast<std::size_t>(offset);
}

inline constexpr std::int64_t kUnwritten = -1;

// Every element contains the number of its tensor and its own logical index.
inline World filled_world(const Layout& layout, int num_ranks) {
  const RankIndex index(layout);
  World world(static_cast<std::size_t>(num_ranks), std::vector<std::vector<Array>>(layout.tensors.size()));
  for (int r = 0; r < num_ranks; ++r)
    for (const TensorBox& held : boxes_of(layout, index, Rank{r})) {
      const Box whole(layout.tensors[static_cast<std::size_t>(held.tensor)].shape);
      Array array{held.box, {}};
      for_each_index(held.box, [&](const auto& at) {
        array.values.push_back(held.tensor * 1'000'000 + static_cast<std::int64_t>(offset_in(whole, at)));
      });
      world[static_cast<std::size_t>(r)][static_cast<std::size_t>(held.tensor)].push_back(std::move(array));
    }
  return world;
}

class Executor {
 public:
  Executor(const Layout& from, const Layout& to, World world)
      : from_(from), to_(to), from_index_(from), to_index_(to), world_(std::move(world)) {
    for (std::size_t r = 0; r < world_.size(); ++r) {
      most_.push_back(held(r));
      const Bytes after = bytes_of(to, to_index_, Rank{static_cast<int>(r)});
      bound_.push_back(std::max(most_.back(), after));
    }
  }

  World run(const std::vector<RankShare>& shares) {
    const std::size_t num_waves = shares.empty() ? 0 : shares[0].waves.size();
    for (std::size_t w = 0; w < num_waves; ++w) {
      std::vector<std::vector<std::vector<Array>>> fresh(world_.size());
      for (std::size_t r = 0; r < world_.size(); ++r) fresh[r] = allocate(r, shares[r].waves[w].tensors);
      for (std::size_t r = 0; r < world_.size(); ++r) post(r, shares[r].waves[w], fresh[r]);
      for (std::size_t r = 0; r < world_.size(); ++r) complete(r, shares[r].waves[w], fresh[r]);
      for (std::size_t r = 0; r < world_.size(); ++r) free_old(r, shares[r].waves[w].tensors, fresh[r]);
      for (const auto& [pair, queue] : in_flight_)
        if (!queue.empty()) throw std::logic_error("a send without a receive");
    }
    return std::move(world_);
  }

  // The maximum number of bytes that a rank held above max(old, new).
  Bytes largest_excess() const {
    Bytes most;
    for (std::size_t r = 0; r < most_.size(); ++r) most = std::max(most, most_[r] - bound_[r]);
    return most;
  }

 private:
  struct Message {
    int tensor;
    Box box;
    std::vector<std::int64_t> values;
  };

  Bytes held(std::size_t rank) const {
    Bytes sum;
    for (std::size_t t = 0; t < world_[rank].size(); ++t)
      for (const Array& array : world_[rank][t])
        sum += Bytes(array.box.num_elements() * from_.tensors[t].bytes_per_element);
    return sum;
  }

  std::vector<Box> new_boxes(std::size_t rank, int tensor) const {
    std::vector<Box> boxes;
    for (const TensorBox& box : boxes_of(to_, to_index_, Rank{static_cast<int>(rank)}))
      if (box.tensor == tensor) boxes.push_back(box.box);
    return boxes;
  }

  std::vector<std::vector<Array>> allocate(std::size_t rank, const std::vector<int>& tensors) {
    std::vector<std::vector<Array>> fresh(from_.tensors.size());
    Bytes size = held(rank);
    for (const int tensor : tensors)
      for (const Box& box : new_boxes(rank, tensor)) {
        const auto& old = world_[rank][static_cast<std::size_t>(tensor)];
        if (std::any_of(old.begin(), old.end(), [&](const Array& array) { return array.box == box; }))
          continue;
        fresh[static_cast<std::size_t>(tensor)].push_back(
            {box, std::vector<std::int64_t>(static_cast<std::size_t>(box.num_elements()), kUnwritten)});
        size += Bytes(box.num_elements() * from_.tensors[static_cast<std::size_t>(tensor)].bytes_per_element);
      }
    most_[rank] = std::max(most_[rank], size);
    return fresh;
  }

  std::vector<std::int64_t> read(std::size_t rank, int tensor, const Box& box) const {
    for (const Array& array : world_[rank][static_cast<std::size_t>(tensor)])
      if (array.box.contains(box)) {
        std::vector<std::int64_t> values;
        for_each_index(box,
                       [&](const auto& at) { values.push_back(array.values[offset_in(array.box, at)]); });
        return values;
      }
    throw std::logic_error("a rank reads what it does not hold");
  }

  static void write(std::vector<Array>& arrays, const Box& box, const std::vector<std::int64_t>& values) {
    bool is_written = false;
    for (Array& array : arrays) {
      if (!array.box.contains(box)) continue;
      std::size_t i = 0;
      for_each_index(box, [&](const auto& at) {
        auto& value = array.values[offset_in(array.box, at)];
        if (value != kUnwritten) throw std::logic_error("an element is written twice");
        value = values[i++];
      });
      is_written = true;
    }
    if (!is_written) throw std::logic_error("an unexpected box arrives");
  }

  void post(std::size_t rank, const RankShare::Wave& wave, std::vector<std::vector<Array>>& fresh) {
    for (const TensorBox& copy : wave.copies)
      write(fresh[static_cast<std::size_t>(copy.tensor)], copy.box, read(rank, copy.tensor, copy.box));
    for (const RankShare::Operation& operation : wave.operations)
      if (operation.is_send)
        in_flight_[{static_cast<int>(rank), operation.peer.value}].push_back(
            {operation.tensor, operation.box, read(rank, operation.tensor, operation.box)});
  }

  void complete(std::size_t rank, const RankShare::Wave& wave, std::vector<std::vector<Array>>& fresh) {
    for (const RankShare::Operation& operation : wave.operations) {
      if (operation.is_send) continue;
      auto& queue = in_flight_[{operation.peer.value, static_cast<int>(rank)}];
      if (queue.empty()) throw std::logic_error("a receive without a send");
      const Message message = queue.front();
      queue.erase(queue.begin());
      if (message.tensor != operation.tensor || message.box != operation.box)
        throw std::logic_error("a send meets the wrong receive");
      write(fresh[static_cast<std::size_t>(message.tensor)], message.box, message.values);
    }
  }

  void free_old(std::size_t rank, const std::vector<int>& tensors, std::vector<std::vector<Array>>& fresh) {
    for (const int tensor : tensors) {
      auto& arrays = world_[rank][static_cast<std::size_t>(tensor)];
      const std::vector<Box> wanted = new_boxes(rank, tensor);
      std::erase_if(arrays, [&](const Array& array) {
        return std::find(wanted.begin(), wanted.end(), array.box) == wanted.end();
      });
      for (Array& array : fresh[static_cast<std::size_t>(tensor)]) arrays.push_back(std::move(array));
    }
  }

  const Layout &from_, &to_;
  RankIndex from_index_, to_index_;
  World world_;
  std::vector<Bytes> most_, bound_;  // [rank]
  std::map<std::pair<int, int>, std::vector<Message>> in_flight_;
};

// Arrays in a defined order, so that two worlds can be compared.
inline World sorted(World world) {
  for (auto& rank : world)
    for (auto& arrays : rank)
      std::sort(arrays.begin(), arrays.end(), [](const Array& a, const Array& b) { return a.box < b.box; });
  return world;
}

inline bool operator==(const Array& a, const Array& b) { return a.box == b.box && a.values == b.values; }

}  // namespace optimus
