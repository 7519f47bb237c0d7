// Determines which part of a micro-batch's activations each device of a stage owns. Also determines which
// data devices exchange between consecutive layers that split activations differently (in two stages, or
// under two strategies in one stage).
//
// Activations are [samples, positions, hidden]. dp splits samples. cp splits positions into 2 * cp chunks;
// context-parallel rank i has chunks i and 2 * cp - 1 - i, which balances causal attention. Without sequence
// parallelism, tp does not split activations. With it, tp splits the tokens into equal consecutive slices
// (the last ones may be shorter). Between layers each tensor-parallel rank sends only its own slice, and the
// receivers gather the other slices, so no byte crosses a slow link twice.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "plan/plan.h"

namespace optimus {

struct ActivationShare {
  Span samples;
  std::vector<Span> positions;  // ascending, without empty spans
  // The range of tokens that the device owns: all tokens or one slice. Tokens are numbered consecutively over
  // all positions of these samples.
  Span tokens;
  std::int64_t num_tokens() const { return tokens.size(); }
};

// One side of a boundary: the devices of a stage under one strategy.
struct Side {
  int num_devices = 1;
  LayerStrategy strategy;
};

// The positions of context-parallel rank `part` of `cp`, in ascending order, without empty spans.
std::vector<Span> context_positions(std::int64_t sequence_length, int cp, int part);

// The share of a micro-batch with `sequences` sequences that device `index` owns. All tensor-parallel ranks
// of a group have the same share, except between blocks under sequence parallelism (`between_blocks`), where
// each rank has a separate slice of the tokens.
ActivationShare share_of(const Side& side, int index, int sequences, std::int64_t sequence_length,
                         bool between_blocks);

// The boxes of [samples, positions, hidden] that device `index` sends or receives at a boundary.
std::vector<Box> boundary_boxes(const Side& side, int index, int sequences, std::int64_t sequence_length,
                                std::int64_t hidden);

struct Route {
  int peer = 0;  // index into the other side's devices
  std::int64_t num_elements = 0;
  std::vector<Box> boxes;
};

// routes_out() returns the data that device `index` of `from` sends to each device of `to`. routes_in()
// returns the data that device `index` of `to` receives from each device of `from`. Both functions take time
// proportional to the number of peers, not of devices.
std::vector<Route> routes_out(const Side& from, const Side& to, int index, int sequences,
                              std::int64_t sequence_length, std::int64_t hidden);
std::vector<Route> routes_in(const Side& from, const Side& to, int index, int sequences,
                             std::int64_t sequence_length, std::int64_t hidden);

// Whether both strategies distribute activations in the same way, so that no data moves inside a stage.
bool is_same_split(const LayerStrategy& a, const LayerStrategy& b);

}  // namespace optimus
