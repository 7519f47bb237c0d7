// Checks that every implementation of Comm must pass, as functions of one rank. The tests run them over
// threads, over Gloo in threads, and in separate processes.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "comm/operation.h"
#include "comm/rank_world.h"

namespace optimus::test {

inline std::string shown(const char* what, at::ScalarType type, std::int64_t count) {
  return fmt::format("{} of {} elements of {}", what, count, c10::toString(type));
}

// One operation of a group, as started by a member, and its expected result.
struct Started {
  std::unique_ptr<Pending> pending{};
  at::Tensor result{}, expected{};
  std::string what{};

  void finish() {
    must(pending->wait(soon()));
    require(same_bits(result, expected), what + " has unexpected values");
  }
};

inline Started start(Comm& comm, const Group& group, CommKind kind, at::ScalarType type, std::int64_t count,
                     std::int64_t key) {
  const std::vector<int> members = with_members(group, comm.size()).members;
  const auto size = static_cast<std::int64_t>(members.size());
  const int place = member_index_of(comm.rank(), with_members(group, comm.size()));
  const int root = members[static_cast<std::size_t>(key % size)];
  const ReduceOp sum = key % 3 == 2 ? ReduceOp::maximum : ReduceOp::sum;
  Started s{.what = shown(name(kind).data(), type, count)};
  switch (kind) {
    case CommKind::all_reduce:
      s.result = row_of(type, key, comm.rank(), 0, count);
      s.expected = sum_of(type, key, members, 0, count, sum);
      s.pending = comm.all_reduce(group, s.result, sum, "numbers");
      break;
    case CommKind::all_gather:
      s.result = at::empty({size, count}, type), s.expected = at::empty({size, count}, type);
      for (std::int64_t m = 0; m < size; ++m)
        s.expected.select(0, m).copy_(row_of(type, key, members[static_cast<std::size_t>(m)], 0, count));
      s.pending = comm.all_gather(group, row_of(type, key, comm.rank(), 0, count), s.result, "numbers");
      break;
    case CommKind::reduce_scatter:
      s.result = at::empty({count}, type);
      s.expected = sum_of(type, key, members, place * count, count, ReduceOp::sum);
      s.pending =
          comm.reduce_scatter(group, row_of(type, key, comm.rank(), 0, count * size), s.result, "numbers");
      break;
    case CommKind::broadcast:
      s.result = row_of(type, key, comm.rank(), 0, count), s.expected = row_of(type, key, root, 0, count);
      s.pending = comm.broadcast(group, s.result, root, "numbers");
      break;
    case CommKind::connect:
    case CommKind::send:
    case CommKind::receive:
      break;
  }
  return s;
}

inline constexpr CommKind kCollectives[] = {CommKind::all_reduce, CommKind::all_gather,
                                            CommKind::reduce_scatter, CommKind::broadcast};

// Every operation, type and size.
inline void every_operation(Comm& comm) {
  must(comm.connect(0, {{kWorld}}, soon()));
  std::int64_t key = 0;
  for (const CommKind kind : kCollectives)
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong})
      for (const std::int64_t count : {0, 1, 7, 1000}) start(comm, kWorld, kind, type, count, ++key).finish();
}

// Sizes that go by pieces, and by several segments of a piece.
inline void large_tensors(Comm& comm) {
  must(comm.connect(0, {{kWorld}}, soon()));
  std::int64_t key = 100;
  for (const CommKind kind : kCollectives)
    for (const std::int64_t count : {20'003, 200'000})
      start(comm, kWorld, kind, at::kFloat, count, ++key).finish();
}

// From every rank to every other rank, several messages per tag, received in a different order of tags than
// sent.
inline void messages(Comm& comm) {
  must(comm.connect(0, {{kWorld}}, soon()));
  constexpr int kTags = 3, kEach = 4;
  std::vector<Started> all;
  const auto key_of = [&](int from, int to, int tag, int k) {
    return ((from * 16 + to) * 16 + tag) * 16 + k;
  };
  const auto count_of = [](int tag, int k) { return 5 * tag + 40 * k; };
  for (int peer = 0; peer < comm.size(); ++peer)
    for (int tag = 0; peer != comm.rank() && tag < kTags; ++tag)
      for (int k = 0; k < kEach; ++k) {
        const at::Tensor row = row_of(at::kFloat, key_of(comm.rank(), peer, tag, k), 0, 0, count_of(tag, k));
        all.push_back({comm.send(peer, row, tag, "a message"), row, row.clone(), "send"});
      }
  for (int peer = 0; peer < comm.size(); ++peer)
    for (int tag = kTags - 1; peer != comm.rank() && tag >= 0; --tag)
      for (int k = 0; k < kEach; ++k) {
        const at::Tensor expected =
            row_of(at::kFloat, key_of(peer, comm.rank(), tag, k), 0, 0, count_of(tag, k));
        const at::Tensor row = at::empty(expected.sizes(), at::kFloat);
        all.push_back({comm.receive(peer, row, tag, "a message"), row, expected, "receive"});
      }
  for (Started& one : all) one.finish();
}

// Random groups that overlap. Each rank starts its operations in an order of its own where that is allowed,
// and waits for them in random order with many in flight. `seed` is the same on all ranks.
inline void random_interleaving(Comm& comm, unsigned seed) {
  std::mt19937 dice(seed);
  const auto up_to = [](std::mt19937& d, int n) { return static_cast<int>(d() % static_cast<unsigned>(n)); };
  std::vector<Group> groups = {kWorld};
  for (int g = 0; g < 4; ++g) {
    std::vector<int> members(static_cast<std::size_t>(comm.size()));
    std::iota(members.begin(), members.end(), 0);
    std::shuffle(members.begin(), members.end(), dice);
    members.resize(static_cast<std::size_t>(1 + up_to(dice, comm.size())));
    groups.push_back({static_cast<Role>(g % 4), members});
  }
  struct Planned {
    CommKind kind;
    std::int64_t count, key;
  };
  std::vector<std::deque<Planned>> planned(groups.size());  // [group]
  for (std::int64_t key = 0; key < 40; ++key)
    planned[static_cast<std::size_t>(up_to(dice, static_cast<int>(groups.size())))].push_back(
        {kCollectives[up_to(dice, 4)], 1 + up_to(dice, up_to(dice, 8) == 0 ? 50'000 : 300), key});
  must(comm.connect(3, groups, soon()));
  std::mt19937 own(seed * 31 + static_cast<unsigned>(comm.rank()));
  std::vector<std::size_t> mine;
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (member_index_of(comm.rank(), with_members(groups[g], comm.size())) >= 0)
      mine.insert(mine.end(), planned[g].size(), g);
  std::shuffle(mine.begin(), mine.end(), own);
  std::vector<Started> under_way;
  for (const std::size_t g : mine) {
    const Planned next = planned[g].front();
    planned[g].pop_front();
    under_way.push_back(start(comm, groups[g], next.kind, at::kFloat, next.count, next.key));
  }
  std::shuffle(under_way.begin(), under_way.end(), own);
  for (Started& one : under_way) {
    if (up_to(own, 4) == 0) (void)one.pending->is_done();
    one.finish();
  }
}

}  // namespace optimus::test
