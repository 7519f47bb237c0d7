// Implements Agreement.
#include "run/rank_agreement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace optimus {
namespace {

constexpr std::int64_t kMaxTextBytes = 4096;

}  // namespace

int Agreement::rank_index() const {
  if (comm_ == nullptr) return 0;
  if (world_.members.empty()) return comm_->rank();
  const auto found = std::find(world_.members.begin(), world_.members.end(), comm_->rank());
  return static_cast<int>(found - world_.members.begin());
}

bool Agreement::any(bool mine, const char* what) const {
  if (is_alone()) return mine;
  at::Tensor word = at::full({1}, mine ? 1.0 : 0.0, at::kDouble);
  throw_if_failed(
      comm_->all_reduce(world_, word, ReduceOp::maximum, what)->wait(Deadline::after(timeout_, what)));
  return word.item<double>() > 0;
}

double Agreement::sum(double mine, const char* what) const {
  if (is_alone()) return mine;
  at::Tensor word = at::full({1}, mine, at::kDouble);
  throw_if_failed(
      comm_->all_reduce(world_, word, ReduceOp::sum, what)->wait(Deadline::after(timeout_, what)));
  return word.item<double>();
}

std::string Agreement::value_of_first_rank(const std::string& mine, const char* what) const {
  if (is_alone()) return mine;
  ensure(std::ssize(mine) < kMaxTextBytes, "{} bytes of {}", mine.size(), what);
  at::Tensor bytes = at::zeros({kMaxTextBytes}, at::kByte);
  auto* data = reinterpret_cast<char*>(bytes.data_ptr<std::uint8_t>());
  if (rank_index() == 0) std::memcpy(data, mine.data(), mine.size());
  const int first = world_.members.empty() ? 0 : world_.members.front();
  throw_if_failed(comm_->broadcast(world_, bytes, first, what)->wait(Deadline::after(timeout_, what)));
  return std::string(data);
}

}  // namespace optimus
