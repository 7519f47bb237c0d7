// Implements observation_tree.h.
#include "switching/observation_tree.h"

#include <ATen/ops/zeros.h>

#include <cstring>

namespace optimus {
namespace {

constexpr int kBranches = 8;
constexpr int kFirstTag = 0x7fb1, kRestTag = 0x7fb2;  // not used by other messages
constexpr std::int64_t kMaxTextBytes = 1 << 26;
constexpr std::int64_t kSizeBytes = 8;
// Bytes of text in the first message. The text of a single rank takes about 1.4 KB.
constexpr std::int64_t kFirstBytes = 4096 - kSizeBytes;

int depth_of(int rank) {
  int depth = 0;
  for (; rank > 0; rank = (rank - 1) / kBranches) ++depth;
  return depth;
}

}  // namespace

ObservationTree::ObservationTree(Comm& comm, Seconds timeout)
    : comm_(comm), timeout_(timeout), depth_(depth_of(comm.size() - 1)), own_depth_(depth_of(comm.rank())) {}

ObservationTree::~ObservationTree() = default;

std::vector<int> ObservationTree::children() const {
  std::vector<int> result;
  for (int branch = 1; branch <= kBranches; ++branch)
    if (const std::int64_t child = std::int64_t{comm_.rank()} * kBranches + branch; child < comm_.size())
      result.push_back(static_cast<int>(child));
  return result;
}

void ObservationTree::post_receives() {
  // The deepest ranks send from the first call on. Each level above them starts one call later.
  if (num_sent_ < depth_ - own_depth_) return;
  for (const int child : children()) {
    const at::Tensor first = at::zeros({kSizeBytes + kFirstBytes}, at::kByte);
    posted_receives_.push_back({child, first, comm_.receive(child, first, kFirstTag, "an observation")});
  }
}

void ObservationTree::receive() {
  const Deadline deadline = Deadline::after(timeout_, "the observations of other ranks");
  if (!posted_receives_.empty()) from_children_ = {};
  for (const PostedReceive& from : std::exchange(posted_receives_, {}))
    from_children_.merge(read(from, deadline));
  for (const std::unique_ptr<Pending>& send : sends_) throw_if_failed(send->wait(deadline));
  sends_.clear();
}

Observation ObservationTree::read(const PostedReceive& from, const Deadline& deadline) {
  throw_if_failed(from.receive->wait(deadline));
  const auto* const data = reinterpret_cast<const char*>(from.first.const_data_ptr<std::uint8_t>());
  std::int64_t bytes = 0;
  std::memcpy(&bytes, data, kSizeBytes);
  if (bytes <= 0 || bytes > kMaxTextBytes)
    throw RuntimeFailure("rank {} announced an observation of {} bytes; expected 1 to {}", from.child, bytes,
                         kMaxTextBytes);
  std::string text(data + kSizeBytes, static_cast<std::size_t>(std::min(bytes, kFirstBytes)));
  if (bytes > kFirstBytes) {
    const at::Tensor rest = at::zeros({bytes - kFirstBytes}, at::kByte);
    throw_if_failed(comm_.receive(from.child, rest, kRestTag, "an observation")->wait(deadline));
    text.append(reinterpret_cast<const char*>(rest.const_data_ptr<std::uint8_t>()),
                static_cast<std::size_t>(rest.numel()));
  }
  return parse_observation(text, "a rank's observation");
}

std::optional<Observation> ObservationTree::send(Observation own) {
  own_.push_back(std::move(own));
  ++num_sent_;
  post_receives();
  if (std::ssize(own_) <= depth_ - own_depth_) return std::nullopt;
  Observation merged = std::move(own_.front());
  own_.pop_front();
  if (from_children_.num_ranks > 0) merged.merge(from_children_);
  if (comm_.rank() == 0) return merged;
  send_up(merged);
  return std::nullopt;
}

void ObservationTree::send_up(const Observation& merged) {
  const std::string text = to_json(merged).dump();
  const auto bytes = static_cast<std::int64_t>(text.size()), first_bytes = std::min(bytes, kFirstBytes);
  const int parent = (comm_.rank() - 1) / kBranches;
  const at::Tensor first = at::zeros({kSizeBytes + kFirstBytes}, at::kByte);
  std::memcpy(first.data_ptr<std::uint8_t>(), &bytes, kSizeBytes);
  std::memcpy(first.data_ptr<std::uint8_t>() + kSizeBytes, text.data(),
              static_cast<std::size_t>(first_bytes));
  sends_.push_back(comm_.send(parent, first, kFirstTag, "observations"));
  if (bytes == first_bytes) return;
  const at::Tensor rest = at::zeros({bytes - first_bytes}, at::kByte);
  std::memcpy(rest.data_ptr<std::uint8_t>(), text.data() + first_bytes,
              static_cast<std::size_t>(bytes - first_bytes));
  sends_.push_back(comm_.send(parent, rest, kRestTag, "observations"));
}

}  // namespace optimus
