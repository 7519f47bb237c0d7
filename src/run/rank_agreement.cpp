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
  const auto match = std::find(world_.members.begin(), world_.members.end(), comm_->rank());
  return static_cast<int>(match - world_.members.begin());
}

bool Agreement::any(bool value, const char* description) const {
  if (is_alone()) return value;
  at::Tensor tensor = at::full({1}, value ? 1.0 : 0.0, at::kDouble);
  throw_if_failed(comm_->all_reduce(world_, tensor, ReduceOp::maximum, description)
                      ->wait(Deadline::after(timeout_, description)));
  return tensor.item<double>() > 0;
}

double Agreement::sum(double value, const char* description) const {
  if (is_alone()) return value;
  at::Tensor tensor = at::full({1}, value, at::kDouble);
  throw_if_failed(comm_->all_reduce(world_, tensor, ReduceOp::sum, description)
                      ->wait(Deadline::after(timeout_, description)));
  return tensor.item<double>();
}

std::string Agreement::value_of_first_rank(const std::string& value, const char* description) const {
  if (is_alone()) return value;
  ensure(std::ssize(value) < kMaxTextBytes, "{}: expected less than {} bytes, got {}", description,
         kMaxTextBytes, value.size());
  at::Tensor bytes = at::zeros({kMaxTextBytes}, at::kByte);
  auto* data = reinterpret_cast<char*>(bytes.data_ptr<std::uint8_t>());
  if (rank_index() == 0) std::memcpy(data, value.data(), value.size());
  const int first = world_.members.empty() ? 0 : world_.members.front();
  throw_if_failed(
      comm_->broadcast(world_, bytes, first, description)->wait(Deadline::after(timeout_, description)));
  return std::string(data);
}

}  // namespace optimus
