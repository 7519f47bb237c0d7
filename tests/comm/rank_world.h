// Runs the same function as every rank of a world, over threads or over Gloo (each rank a thread with
// connections of its own), and defines the inputs of ranks, so that each rank can compute the expected
// result.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/TypeCast.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "comm/c10d_comm.h"
#include "comm/thread_comm.h"

namespace optimus::test {

enum class Backend { threads, gloo, trees };  // trees: gloo with the algorithms of large groups
inline std::string text(Backend backend) {
  return backend == Backend::threads ? "threads" : backend == Backend::gloo ? "gloo" : "trees";
}

inline Deadline soon(double seconds = 20) { return Deadline::after(Seconds(seconds), "a test"); }

inline const Group kWorld{Role::world, {}};

// Thresholds at which small tensors use every algorithm.
inline constexpr AlgorithmThresholds kTestThresholds{.split_min_bytes = 4 << 10, .segment_bytes = 64 << 10};
inline constexpr AlgorithmThresholds kTreeThresholds{.split_min_bytes = 4 << 10,
                                                     .segment_bytes = 64 << 10,
                                                     .max_direct_members = 1,
                                                     .tree_max_bytes = 1 << 10};

// Each rank receives its Comm without any connected group, and may destroy it to leave early.
using RankBody = std::function<void(std::unique_ptr<Comm> comm)>;

inline void run_ranks(Backend backend, int size, const RankBody& body) {
  ThreadWorld world(size);
  std::unique_ptr<StoreServer> server;
  if (backend != Backend::threads) server = std::make_unique<StoreServer>();
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      // As in the engine: views without autograd metadata, which libtorch releases in ways that the thread
      // sanitizer does not see.
      const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
      try {
        std::unique_ptr<Comm> comm;
        if (backend == Backend::threads)
          comm = world.comm(rank);
        else
          comm = value_or_throw(
              make_process_comm({rank,
                                 size,
                                 {.port = server->port(), .token = "test"},
                                 backend == Backend::trees ? kTreeThresholds : kTestThresholds},
                                soon()));
        body(std::move(comm));
      } catch (const std::exception& error) {
        problems[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank)
    if (const std::string& problem = problems[static_cast<std::size_t>(rank)]; !problem.empty())
      ADD_FAILURE() << text(backend) << ", rank " << rank << " of " << size << ": " << problem;
}

inline void must(const CommOutcome<void>& outcome) {
  if (!outcome) throw std::runtime_error(text(outcome.error()));
}
inline void require(bool is_true, const std::string& what) {
  if (!is_true) throw std::runtime_error(what);
}

// The input of rank `rank` for element i of operation `key`: small numbers with many bits, whose sums depend
// on their order.
inline double value_of(std::int64_t key, int rank, std::int64_t i) {
  const auto hash = static_cast<std::uint64_t>(key * 1'000'003 + rank * 7919 + i) * 0x9e3779b97f4a7c15U;
  return static_cast<double>(hash >> 40) / (1 << 20) - 8;
}

template <typename Function>
void with_type(at::ScalarType type, Function&& function) {
  if (type == at::kFloat) return function(float{});
  if (type == at::kDouble) return function(double{});
  if (type == at::kBFloat16) return function(c10::BFloat16{});
  return function(std::int64_t{});
}

inline at::Tensor row_of(at::ScalarType type, std::int64_t key, int rank, std::int64_t begin,
                         std::int64_t count) {
  at::Tensor row = at::empty({count}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    T* const data = row.data_ptr<T>();
    for (std::int64_t i = 0; i < count; ++i) data[i] = c10::convert<T>(value_of(key, rank, begin + i));
  });
  return row;
}

// Sums in the order of members, bf16 in fp32: an independent implementation of comm/sum.h.
inline at::Tensor sum_of(at::ScalarType type, std::int64_t key, const std::vector<int>& members,
                         std::int64_t begin, std::int64_t count, ReduceOp kind) {
  at::Tensor row = at::empty({count}, type);
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    using Wide = std::conditional_t<std::is_same_v<T, c10::BFloat16>, float, T>;
    for (std::int64_t i = 0; i < count; ++i) {
      Wide total{};
      for (std::size_t m = 0; m < members.size(); ++m) {
        const Wide next = static_cast<Wide>(c10::convert<T>(value_of(key, members[m], begin + i)));
        total = m == 0 ? next : kind == ReduceOp::sum ? total + next : std::max(total, next);
      }
      row.data_ptr<T>()[i] = c10::convert<T>(total);
    }
  });
  return row;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace optimus::test
