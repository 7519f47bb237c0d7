// See operation.h.
#include "comm/operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

namespace optimus {
namespace {

at::Tensor as_row(const at::Tensor& tensor, std::string_view description) {
  ensure(tensor.defined() && tensor.is_contiguous(), "communication of {}: the tensor must be contiguous",
         description);
  return tensor.view({-1});
}

void ensure_fit(const at::Tensor& part, const at::Tensor& whole, int num_members,
                std::string_view description) {
  ensure(part.scalar_type() == whole.scalar_type() && part.device() == whole.device(),
         "communication of {}: both tensors must have the same type and device", description);
  ensure(part.numel() * num_members == whole.numel(),
         "communication of {}: got {} elements, expected {} times {}", description, whole.numel(),
         num_members, part.numel());
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::tensor:
      return "tensor";
    case Role::context:
      return "context";
    case Role::shard:
      return "shard";
    case Role::gather:
      return "gather";
    case Role::replica:
      return "replica";
    case Role::sync:
      return "sync";
    case Role::world:
      return "world";
    case Role::expert:
      return "expert";
  }
  return "";
}

}  // namespace

std::string_view name(CommKind kind) {
  switch (kind) {
    case CommKind::connect:
      return "connect";
    case CommKind::all_reduce:
      return "all_reduce";
    case CommKind::all_gather:
      return "all_gather";
    case CommKind::reduce_scatter:
      return "reduce_scatter";
    case CommKind::broadcast:
      return "broadcast";
    case CommKind::send:
      return "send";
    case CommKind::receive:
      return "receive";
  }
  return "";
}

std::string CommOperation::text() const { return fmt::format("{} of {}", name(kind), description); }

std::int64_t CommOperation::bytes() const {
  return static_cast<std::int64_t>(
      std::max(from.defined() ? from.nbytes() : 0, to.defined() ? to.nbytes() : 0));
}

CommOperation all_reduce_operation(at::Tensor tensor, ReduceOp kind, std::string_view description) {
  const at::Tensor row = as_row(tensor, description);
  return {.kind = CommKind::all_reduce,
          .from = row,
          .to = row,
          .sum = kind,
          .description = std::string(description)};
}

CommOperation all_gather_operation(at::Tensor from, at::Tensor to, int num_members,
                                   std::string_view description) {
  ensure_fit(from, to, num_members, description);
  return {.kind = CommKind::all_gather,
          .from = as_row(from, description),
          .to = as_row(to, description),
          .description = std::string(description)};
}

CommOperation reduce_scatter_operation(at::Tensor from, at::Tensor to, int num_members,
                                       std::string_view description) {
  ensure_fit(to, from, num_members, description);
  return {.kind = CommKind::reduce_scatter,
          .from = as_row(from, description),
          .to = as_row(to, description),
          .description = std::string(description)};
}

CommOperation broadcast_operation(at::Tensor tensor, int root_index, std::string_view description) {
  ensure(root_index >= 0, "broadcast of {}: the root is not a member of the group", description);
  const at::Tensor row = as_row(tensor, description);
  return {.kind = CommKind::broadcast,
          .from = row,
          .to = row,
          .root = root_index,
          .description = std::string(description)};
}

CommOperation message_operation(CommKind kind, at::Tensor tensor, std::string_view description) {
  CommOperation operation{.kind = kind, .description = std::string(description)};
  (kind == CommKind::send ? operation.from : operation.to) = as_row(tensor, description);
  return operation;
}

std::string deadline_text(const Deadline& deadline) {
  return fmt::format("the deadline for {} passed", deadline.name());
}

std::string group_text(const Group& group, int epoch) {
  return fmt::format("{} {{{}}}, epoch {}", role_name(group.role), fmt::join(group.members, " "), epoch);
}

Group with_members(const Group& group, int num_ranks) {
  Group result = group;
  if (group.role == Role::world && group.members.empty()) {
    result.members.resize(static_cast<std::size_t>(num_ranks));
    std::iota(result.members.begin(), result.members.end(), 0);
  }
  return result;
}

bool is_ordered_before(const Group& a, const Group& b) {
  return std::tie(a.role, a.members) < std::tie(b.role, b.members);
}

int member_index_of(int rank, const Group& group) {
  const auto match = std::find(group.members.begin(), group.members.end(), rank);
  return match == group.members.end() ? -1 : static_cast<int>(match - group.members.begin());
}

std::vector<Group> own_groups(std::span<const Group> groups, int rank, int num_ranks) {
  std::vector<Group> rank_groups;
  for (const Group& group : groups) {
    Group full_group = with_members(group, num_ranks);
    for (const int member : full_group.members)
      ensure(member >= 0 && member < num_ranks, "{} has a member that is not in the world of {} ranks",
             group_text(full_group, 0), num_ranks);
    if (member_index_of(rank, full_group) >= 0) rank_groups.push_back(std::move(full_group));
  }
  std::sort(rank_groups.begin(), rank_groups.end(), is_ordered_before);
  rank_groups.erase(std::unique(rank_groups.begin(), rank_groups.end()), rank_groups.end());
  return rank_groups;
}

std::string text(const CommFailure& failure) {
  std::string missing_text;
  if (!failure.missing.empty())
    missing_text = fmt::format(", rank{} {} missing", failure.missing.size() == 1 ? "" : "s",
                               fmt::join(failure.missing, " "));
  return fmt::format("{} in {}: {} (waited {:.3g} s{})", failure.operation, failure.group, failure.reason,
                     failure.waited.value, missing_text);
}

}  // namespace optimus
