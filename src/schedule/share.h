// Which part of a micro-batch's activations a device of a stage works on, and what travels when two neighbouring
// layers split them differently (next stage, or another strategy inside the stage).
//
// Activations are [samples, positions, hidden]. dp splits samples, cp positions (in 2 * cp pieces, the i-th and the
// i-th from the end to part i, so that causal attention is balanced), tp nothing, or with sequence parallelism the tokens
// that are left, one after the other, in equal slices (the last ones shorter). Between layers each tensor part carries its own
// slice and gathers the rest on arrival, so no byte crosses a slow link twice.
#pragma once

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "plan/plan.h"

namespace optimus {

struct ActivationShare {
  Span samples;
  std::vector<Span> positions;  // in order, not empty ones
  Span tokens;  // which of these samples' positions, counted one after the other: all, or a slice
  std::int64_t num_tokens() const { return tokens.size(); }
};

// One side of a boundary: a stage's devices under one strategy.
struct Side {
  int num_devices = 1;
  LayerStrategy strategy;
};

// The positions of context part `part` of cp, in order, not empty ones.
std::vector<Span> context_positions(std::int64_t sequence_length, int cp, int part);

// What device `index` works on of a micro-batch of `sequences`; the tensor parts of one group have the same, unless
// with sequence parallelism `between_blocks`, where each has its slice of the tokens.
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

// What device `index` of `from` sends to the devices of `to`, by peer; and the mirror image, what device `index` of
// `to` receives. O(peers), not O(devices).
std::vector<Route> routes_out(const Side& from, const Side& to, int index, int sequences,
                              std::int64_t sequence_length, std::int64_t hidden);
std::vector<Route> routes_in(const Side& from, const Side& to, int index, int sequences,
                             std::int64_t sequence_length, std::int64_t hidden);

// Whether activations lie the same way under both strategies, so that nothing has to move inside a stage.
bool is_same_split(const LayerStrategy& a, const LayerStrategy& b);

}  // namespace optimus
