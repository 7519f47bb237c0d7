// What all ways of communication share: the kinds of operation, what their tensors must be like, how groups and failures are
// named. Not how anything is carried.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace optimus {

enum class CommKind : std::uint8_t {
  connect,
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  send,
  receive
};
std::string_view name(CommKind kind);

// One member's side of an operation: its tensors, seen as one row of elements each. `from` and `to` may be the same memory.
struct CommOperation {
  CommKind kind = CommKind::connect;
  at::Tensor from{}, to{};
  Sum sum = Sum::sum;
  int root = 0;  // broadcast: its place among the members
  std::string what;

  std::string text() const;  // "all_reduce of gradients of block 3"
  // Of the whole tensor: what all members must agree on.
  std::int64_t bytes() const;
};

// Each ensures that tensors are contiguous, of one type, and fit each other.
CommOperation all_reduce_operation(at::Tensor tensor, Sum kind, std::string_view what);
CommOperation all_gather_operation(at::Tensor from, at::Tensor to, int num_members, std::string_view what);
CommOperation reduce_scatter_operation(at::Tensor from, at::Tensor to, int num_members,
                                       std::string_view what);
CommOperation broadcast_operation(at::Tensor tensor, int root_place, std::string_view what);
CommOperation message_operation(CommKind kind, at::Tensor tensor, std::string_view what);

// "the deadline for step 12 passed"
std::string deadline_text(const Deadline& deadline);
// "shard {0 2 4}, epoch 1"
std::string group_text(const Group& group, int epoch);
// `world` with everybody listed, so that a group is known by its members.
Group with_members(const Group& group, int num_ranks);
// Role and members, in the order in which groups are connected.
bool comes_before(const Group& a, const Group& b);
// The rank's own place in the group; -1 when it is no member.
int place_of(int rank, const Group& group);
// Those of `groups` that the rank is in, each once, in the order in which they are connected.
std::vector<Group> own_groups(std::span<const Group> groups, int rank, int num_ranks);

}  // namespace optimus
