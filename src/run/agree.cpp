// See agree.h.
#include "run/agree.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace optimus {
namespace {

constexpr std::int64_t kMostBytes = 4096;

}  // namespace

bool Agreement::any(bool mine, const char* what) const {
  if (is_alone()) return mine;
  at::Tensor word = at::full({1}, mine ? 1.0 : 0.0, at::kDouble);
  done_or_throw(comm_->all_reduce(world_, word, Sum::maximum, what)->wait(Deadline::after(patience_, what)));
  return word.item<double>() > 0;
}

double Agreement::sum(double mine, const char* what) const {
  if (is_alone()) return mine;
  at::Tensor word = at::full({1}, mine, at::kDouble);
  done_or_throw(comm_->all_reduce(world_, word, Sum::sum, what)->wait(Deadline::after(patience_, what)));
  return word.item<double>();
}

std::string Agreement::from_first(const std::string& mine, const char* what) const {
  if (is_alone()) return mine;
  ensure(std::ssize(mine) < kMostBytes, "{} bytes of {}", mine.size(), what);
  at::Tensor bytes = at::zeros({kMostBytes}, at::kByte);
  auto* data = reinterpret_cast<char*>(bytes.data_ptr<std::uint8_t>());
  if (rank() == 0) std::memcpy(data, mine.data(), mine.size());
  done_or_throw(comm_->broadcast(world_, bytes, 0, what)->wait(Deadline::after(patience_, what)));
  return std::string(data);
}

}  // namespace optimus
