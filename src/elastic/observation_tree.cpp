// See observation_tree.h.
#include "elastic/observation_tree.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace optimus {
namespace {

constexpr int kBranches = 8;
constexpr int kSizeTag = 0x7fb1, kTextTag = 0x7fb2;  // no other messages have these
constexpr std::int64_t kMostBytes = 1 << 26;

int depth_of(int rank) {
  int depth = 0;
  for (; rank > 0; rank = (rank - 1) / kBranches) ++depth;
  return depth;
}

}  // namespace

ObservationTree::ObservationTree(Comm& comm, Seconds patience)
    : comm_(comm),
      patience_(patience),
      depth_(depth_of(comm.size() - 1)),
      own_depth_(depth_of(comm.rank())) {}

ObservationTree::~ObservationTree() = default;

std::vector<int> ObservationTree::children() const {
  std::vector<int> result;
  for (int branch = 1; branch <= kBranches; ++branch)
    if (const std::int64_t child = std::int64_t{comm_.rank()} * kBranches + branch; child < comm_.size())
      result.push_back(static_cast<int>(child));
  return result;
}

void ObservationTree::receive() {
  if (!std::exchange(is_under_way_, false)) return;
  const Deadline deadline = Deadline::after(patience_, "what other ranks have seen");
  below_ = {};
  // The deepest ranks send from the first time on, those above them one time later.
  const bool have_children_sent = num_sent_ >= depth_ - own_depth_;
  for (const int child : have_children_sent ? children() : std::vector<int>()) {
    at::Tensor size = at::zeros({1}, at::kLong);
    done_or_throw(comm_.receive(child, size, kSizeTag, "how much a rank has seen")->wait(deadline));
    const std::int64_t bytes = *size.const_data_ptr<std::int64_t>();
    if (bytes <= 0 || bytes > kMostBytes)
      throw UserError("rank {} announces {} bytes of what it has seen", child, bytes);
    at::Tensor text = at::zeros({bytes}, at::kByte);
    done_or_throw(comm_.receive(child, text, kTextTag, "what a rank has seen")->wait(deadline));
    const auto* const data = reinterpret_cast<const char*>(text.const_data_ptr<std::uint8_t>());
    below_.merge(parse_observation({data, static_cast<std::size_t>(bytes)}, "what a rank has seen"));
  }
  for (const std::unique_ptr<Pending>& send : sends_) done_or_throw(send->wait(deadline));
  sends_.clear();
}

std::optional<Observation> ObservationTree::send(Observation own) {
  own_.push_back(std::move(own));
  ++num_sent_, is_under_way_ = true;
  if (std::ssize(own_) <= depth_ - own_depth_) return std::nullopt;
  Observation all = std::move(own_.front());
  own_.pop_front();
  if (below_.num_ranks > 0) all.merge(below_);
  if (comm_.rank() == 0) return all;
  send_up(all);
  return std::nullopt;
}

void ObservationTree::send_up(const Observation& all) {
  const std::string text = to_json(all).dump();
  const int parent = (comm_.rank() - 1) / kBranches;
  at::Tensor bytes = at::zeros({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr<std::uint8_t>(), text.data(), text.size());
  sends_.push_back(
      comm_.send(parent, at::full({1}, bytes.numel(), at::kLong), kSizeTag, "how much was seen"));
  sends_.push_back(comm_.send(parent, bytes, kTextTag, "what was seen"));
}

}  // namespace optimus
