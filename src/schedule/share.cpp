// See share.h.
#include "schedule/share.h"

#include <algorithm>

#include "base/error.h"
#include "layout/layout.h"

namespace optimus {
namespace {

// Part `index` of split_evenly(n, parts), computed without the other parts.
Span even_share(std::int64_t n, int parts, int index) {
  const std::int64_t base = n / parts, extra = n % parts;
  const std::int64_t begin = index * base + std::min<std::int64_t>(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

struct Coordinates {
  int data, context, tensor;
};

Coordinates coordinates(const LayerStrategy& strategy, int index) {
  return {index / (strategy.tp * strategy.cp), index / strategy.tp % strategy.cp, index % strategy.tp};
}

// The positions in `spans` whose index is in `slice`. Indices are counted through all spans.
std::vector<Span> slice_of(const std::vector<Span>& spans, Span slice) {
  std::vector<Span> result;
  std::int64_t num_before = 0;
  for (const Span& span : spans) {
    const std::int64_t begin = std::max(slice.begin - num_before, std::int64_t{0}),
                       end = std::min(slice.end - num_before, span.size());
    if (begin < end) result.push_back({span.begin + begin, span.begin + end});
    num_before += span.size();
  }
  return result;
}

std::int64_t total_size(const std::vector<Span>& spans) {
  std::int64_t sum = 0;
  for (const Span& span : spans) sum += span.size();
  return sum;
}

}  // namespace

std::vector<Span> context_positions(std::int64_t sequence_length, int cp, int part) {
  if (cp == 1) return {{0, sequence_length}};
  std::vector<Span> result;
  for (const int piece : {part, 2 * cp - 1 - part}) {
    const Span span = even_share(sequence_length, 2 * cp, piece);
    if (span.size() > 0) result.push_back(span);
  }
  return result;
}

ActivationShare share_of(const Side& side, int index, int sequences, std::int64_t sequence_length,
                         bool between_blocks) {
  const LayerStrategy& s = side.strategy;
  const Coordinates at = coordinates(s, index);
  ActivationShare share;
  share.samples = even_share(sequences, side.num_devices / (s.tp * s.cp), at.data);
  share.positions = context_positions(sequence_length, s.cp, at.context);
  const std::int64_t tokens = share.samples.size() * total_size(share.positions);
  share.tokens =
      between_blocks && s.sequence_parallel ? shard_span(tokens, s.tp, at.tensor) : Span{0, tokens};
  return share;
}

namespace {

// The boxes of a share's tokens: the end of its first sample, its whole samples, and the start of its last
// sample.
std::vector<Box> token_boxes(const ActivationShare& share, Span features) {
  std::vector<Box> boxes;
  const auto add = [&](Span samples, Span slice) {
    for (const Span& positions : slice_of(share.positions, slice)) {
      const Box box{
          {share.samples.begin + samples.begin, share.samples.begin + samples.end}, positions, features};
      if (!box.is_empty()) boxes.push_back(box);
    }
  };
  const std::int64_t length = total_size(share.positions);
  std::int64_t next_token = share.tokens.begin;
  while (next_token < share.tokens.end) {
    const std::int64_t sample = next_token / length, offset = next_token % length;
    if (offset == 0 && share.tokens.end - next_token >= length) {
      const std::int64_t end = share.tokens.end / length;
      add({sample, end}, {0, length});
      next_token = end * length;
    } else {
      const std::int64_t end = std::min(share.tokens.end, (sample + 1) * length);
      add({sample, sample + 1}, {offset, end - sample * length});
      next_token = end;
    }
  }
  return boxes;
}

}  // namespace

std::vector<Box> boundary_boxes(const Side& side, int index, int sequences, std::int64_t sequence_length,
                                std::int64_t hidden) {
  const ActivationShare share = share_of(side, index, sequences, sequence_length, true);
  const bool splits_hidden = !side.strategy.sequence_parallel;
  const Span features = splits_hidden
                            ? even_share(hidden, side.strategy.tp, coordinates(side.strategy, index).tensor)
                            : Span{0, hidden};
  return token_boxes(share, features);
}

namespace {

// The devices of `side` whose samples overlap with `samples`: a range of data-parallel ranks, found by
// bisection.
Span peers_with_samples(const Side& side, Span samples, int sequences) {
  const int width = side.strategy.tp * side.strategy.cp, dp = side.num_devices / width;
  const auto first_where = [&](auto predicate) {
    int low = 0, high = dp;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (predicate(even_share(sequences, dp, middle)))
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  };
  const int first = first_where([&](Span span) { return span.end > samples.begin; });
  const int end = first_where([&](Span span) { return span.begin >= samples.end; });
  return {static_cast<std::int64_t>(first) * width, static_cast<std::int64_t>(end) * width};
}

std::vector<Route> routes(const Side& own_side, const Side& peer_side, int index, int sequences,
                          std::int64_t sequence_length, std::int64_t hidden) {
  const std::vector<Box> boxes = boundary_boxes(own_side, index, sequences, sequence_length, hidden);
  std::vector<Route> result;
  if (boxes.empty()) return result;
  const Span peers = peers_with_samples(peer_side, {boxes.front()[0].begin, boxes.back()[0].end}, sequences);
  for (std::int64_t peer = peers.begin; peer < peers.end; ++peer) {
    Route route;
    route.peer = static_cast<int>(peer);
    for (const Box& peer_box : boundary_boxes(peer_side, route.peer, sequences, sequence_length, hidden))
      for (const Box& box : boxes)
        if (const auto common = intersect(box, peer_box)) {
          route.boxes.push_back(*common);
          route.num_elements += common->num_elements();
        }
    // Sorted, so that both sides list the boxes of a message in the same order.
    std::sort(route.boxes.begin(), route.boxes.end());
    if (!route.boxes.empty()) result.push_back(std::move(route));
  }
  return result;
}

}  // namespace

std::vector<Route> routes_out(const Side& from, const Side& to, int index, int sequences,
                              std::int64_t sequence_length, std::int64_t hidden) {
  return routes(from, to, index, sequences, sequence_length, hidden);
}

std::vector<Route> routes_in(const Side& from, const Side& to, int index, int sequences,
                             std::int64_t sequence_length, std::int64_t hidden) {
  return routes(to, from, index, sequences, sequence_length, hidden);
}

bool is_same_split(const LayerStrategy& a, const LayerStrategy& b) {
  return a.tp == b.tp && a.cp == b.cp && a.sequence_parallel == b.sequence_parallel;
}

}  // namespace optimus
