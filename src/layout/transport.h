// Transport: give rows (with demands) to columns (with supplies) so that the sum of the weights of the pairs
// is largest. The assignment problem with multiplicities; pairs that are not listed weigh nothing. Knows
// nothing of layouts. Internal to src/layout.
#pragma once

#include <cstdint>
#include <vector>

namespace optimus {

struct TransportProblem {
  struct Edge {
    int row = 0, column = 0;
    std::int64_t weight = 0;  // positive
  };
  std::vector<int> demand, supply;  // [row], [column]
  std::vector<Edge> edges;
};

struct TransportFlow {
  int row = 0, column = 0, amount = 0;
};

struct TransportResult {
  std::vector<TransportFlow> flows;  // a row may stay with a part of its demand
  std::int64_t weight = 0;
  std::int64_t bound = 0;  // no result weighs more
  bool is_exact = true;    // weight == bound
};

// Connected parts are solved one by one: exactly, by shortest augmenting paths, while rows * edges of the
// part is at most `max_work` (the time grows no faster); greedily above that, with the bound that each row,
// or each column, alone could reach.
TransportResult transport(const TransportProblem& problem, double max_work);

}  // namespace optimus
