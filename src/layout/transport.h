// Transport: assigns rows (with demands) to columns (with supplies) so that the total weight of the pairs is
// maximal. This is the transportation problem (the assignment problem with multiplicities). Pairs that are
// not listed have weight 0. This header does not depend on layouts. Internal to src/layout.
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
  std::vector<TransportFlow> flows;  // a part of a row's demand may remain unassigned
  std::int64_t weight = 0;
  std::int64_t bound = 0;  // upper bound on the weight of any result
  bool is_exact = true;    // weight == bound
};

// Connected components of the problem are solved separately. A component is solved exactly, by shortest
// augmenting paths, if its rows * edges is at most `max_work`; the time grows no faster than this product. A
// larger component is solved greedily. The bound of a greedy result is the smaller of two weights: the weight
// if rows did not compete for columns, and the weight if columns did not compete for rows.
TransportResult transport(const TransportProblem& problem, double max_work);

}  // namespace optimus
