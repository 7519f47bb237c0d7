// Code shared by all implementations of Comm: the kinds of operations, the requirements on their tensors, and
// the texts that describe groups and failures. Does not transfer data.
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

// One member's part of an operation, with each tensor flattened to one row. `from` and `to` may share memory.
struct CommOperation {
  CommKind kind = CommKind::connect;
  at::Tensor from{}, to{};
  ReduceOp sum = ReduceOp::sum;
  int root = 0;  // group index of the root of a broadcast
  std::string description;

  std::string text() const;  // "all_reduce of gradients of block 3"
  // Size of the whole tensor, which is the same on all members.
  std::int64_t bytes() const;
};

// Each function checks that its tensors are contiguous, have the same type, and have matching sizes.
CommOperation all_reduce_operation(at::Tensor tensor, ReduceOp kind, std::string_view description);
CommOperation all_gather_operation(at::Tensor from, at::Tensor to, int num_members,
                                   std::string_view description);
CommOperation reduce_scatter_operation(at::Tensor from, at::Tensor to, int num_members,
                                       std::string_view description);
CommOperation broadcast_operation(at::Tensor tensor, int root_index, std::string_view description);
CommOperation message_operation(CommKind kind, at::Tensor tensor, std::string_view description);

// Returns a text such as "the deadline for step 12 passed".
std::string deadline_text(const Deadline& deadline);
// Returns a text such as "shard {0 2 4}, epoch 1".
std::string group_text(const Group& group, int epoch);
// Lists all ranks as members of a world group, so that every group is identified by its members.
Group with_members(const Group& group, int num_ranks);
// Returns whether group `a` is connected before group `b`. Groups are ordered by role, then by members.
bool is_ordered_before(const Group& a, const Group& b);
// Returns the rank's index in the group, or -1 if the rank is not a member.
int member_index_of(int rank, const Group& group);
// Returns the groups that contain `rank`, without duplicates, in the order in which they are connected.
std::vector<Group> own_groups(std::span<const Group> groups, int rank, int num_ranks);

}  // namespace optimus
