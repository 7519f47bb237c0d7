// Determines which part of a micro-batch's activations each device of a stage owns, and which data devices
// send each other where two consecutive layers split activations differently (in the next stage, or under
// another strategy in the same stage).
//
// Activations are [samples, positions, hidden]. dp splits samples. cp splits positions into 2 * cp chunks;
// context part i has chunks i and 2 * cp - 1 - i, which balances causal attention. tp splits nothing, or,
// with sequence parallelism, the remaining tokens into equal consecutive slices (the last ones may be
// shorter). Between layers each tensor-parallel rank sends only its own slice, and the receivers gather the
// other slices, so no byte crosses a slow link twice.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "plan/plan.h"

namespace optimus {

struct ActivationShare {
  Span samples;
  std::vector<Span> positions;  // ascending, without empty spans
  // The range of tokens among all positions of these samples, numbered consecutively: all tokens, or a
  // slice.
  Span tokens;
  std::int64_t num_tokens() const { return tokens.size(); }
};

// One side of a boundary: the devices of a stage under one strategy.
struct Side {
  int num_devices = 1;
  LayerStrategy strategy;
};

// The positions of context part `part` of `cp`, ascending, without empty spans.
std::vector<Span> context_positions(std::int64_t sequence_length, int cp, int part);

// The share of device `index` of a micro-batch of `sequences`. The tensor-parallel ranks of one group have
// equal shares; but if `between_blocks`, with sequence parallelism, each part has its own slice of the
// tokens.
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

// routes_out(): the data that device `index` of `from` sends to each device of `to`. routes_in(): the data
// that device `index` of `to` receives from each device of `from`. They take time proportional to the number
// of peers, not of devices.
std::vector<Route> routes_out(const Side& from, const Side& to, int index, int sequences,
                              std::int64_t sequence_length, std::int64_t hidden);
std::vector<Route> routes_in(const Side& from, const Side& to, int index, int sequences,
                             std::int64_t sequence_length, std::int64_t hidden);

// Whether both strategies distribute activations in the same way, so that no data moves inside a stage.
bool is_same_split(const LayerStrategy& a, const LayerStrategy& b);

}  // namespace optimus
