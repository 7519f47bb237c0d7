// Solves each connected component, by shortest augmenting paths or greedily.
#include "layout/transport.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace optimus {
namespace {

using Edge = TransportProblem::Edge;
constexpr std::int64_t kInfinity = std::numeric_limits<std::int64_t>::max();

// Shortest augmenting paths with potentials. Costs are negated weights. The last column means "unassigned";
// it has cost 0 and unlimited supply. Invariant: cost - row potential - column potential is never negative
// for an edge, and it is 0 for an edge with flow.
class ExactTransport {
 public:
  explicit ExactTransport(const TransportProblem& problem)
      : demand_(problem.demand), supply_(problem.supply) {
    unassigned_column_ = static_cast<int>(supply_.size());
    supply_.push_back(std::accumulate(demand_.begin(), demand_.end(), 0));
    edges_ = problem.edges;
    for (int row = 0; row < static_cast<int>(demand_.size()); ++row)
      edges_.push_back({row, unassigned_column_, 0});
    flow_.resize(edges_.size());
    edges_of_row_.resize(demand_.size());
    users_of_column_.resize(supply_.size());
    edge_to_row_.resize(demand_.size());
    row_potential_.resize(demand_.size(), kInfinity);
    column_potential_.resize(supply_.size(), 0);
    for (int e = 0; e < static_cast<int>(edges_.size()); ++e) {
      const Edge& edge = edges_[static_cast<std::size_t>(e)];
      edges_of_row_[static_cast<std::size_t>(edge.row)].push_back(e);
      auto& potential = row_potential_[static_cast<std::size_t>(edge.row)];
      potential = std::min(potential, -edge.weight);
    }
  }

  std::vector<TransportFlow> solve() {
    for (int row = 0; row < static_cast<int>(demand_.size()); ++row)
      while (demand_[static_cast<std::size_t>(row)] > 0) augment(row, find_path(row));
    std::vector<TransportFlow> flows;
    for (std::size_t e = 0; e < edges_.size(); ++e)
      if (flow_[e] > 0 && edges_[e].column != unassigned_column_)
        flows.push_back({edges_[e].row, edges_[e].column, flow_[e]});
    return flows;
  }

 private:
  struct QueueEntry {
    std::int64_t distance;
    int column;
    bool operator<(const QueueEntry& other) const { return distance > other.distance; }  // nearest on top
  };

  // Dijkstra's algorithm from row `start`; returns the nearest column with remaining supply and updates the
  // potentials.
  int find_path(int start) {
    column_distance_.assign(supply_.size(), kInfinity);
    row_distance_.assign(demand_.size(), kInfinity);
    edge_to_column_.assign(supply_.size(), -1);
    is_final_.assign(supply_.size(), false);
    final_columns_.clear(), visited_rows_.clear();
    std::priority_queue<QueueEntry> queue;
    const auto visit_row = [&](int row, std::int64_t distance) {
      row_distance_[static_cast<std::size_t>(row)] = distance;
      visited_rows_.push_back(row);
      for (const int e : edges_of_row_[static_cast<std::size_t>(row)]) {
        const auto column = static_cast<std::size_t>(edges_[static_cast<std::size_t>(e)].column);
        const std::int64_t length = distance - edges_[static_cast<std::size_t>(e)].weight -
                                    row_potential_[static_cast<std::size_t>(row)] - column_potential_[column];
        if (length >= column_distance_[column]) continue;
        column_distance_[column] = length, edge_to_column_[column] = e;
        queue.push({length, static_cast<int>(column)});
      }
    };
    visit_row(start, 0);
    while (true) {  // ends in the "unassigned" column at the latest
      const QueueEntry nearest = queue.top();
      queue.pop();
      const auto column = static_cast<std::size_t>(nearest.column);
      if (is_final_[column]) continue;
      is_final_[column] = true;
      final_columns_.push_back(nearest.column);
      if (supply_[column] > 0) {
        update_potentials(nearest.distance);
        return nearest.column;
      }
      for (const int e : users_of_column_[column]) {
        const int row = edges_[static_cast<std::size_t>(e)].row;
        if (row_distance_[static_cast<std::size_t>(row)] != kInfinity) continue;
        edge_to_row_[static_cast<std::size_t>(row)] = e;
        visit_row(row, nearest.distance);
      }
    }
  }

  void update_potentials(std::int64_t end) {
    for (const int row : visited_rows_)
      row_potential_[static_cast<std::size_t>(row)] += end - row_distance_[static_cast<std::size_t>(row)];
    for (const int column : final_columns_)
      column_potential_[static_cast<std::size_t>(column)] -=
          end - column_distance_[static_cast<std::size_t>(column)];
  }

  // Follows the path back from its end. Each column on the path was reached through an edge of a row. In
  // return, that row gives up flow to another column.
  void augment(int start, int end) {
    std::vector<int> gains, losses;  // edges whose flow increases, edges whose flow decreases
    for (int column = end;;) {
      const int e = edge_to_column_[static_cast<std::size_t>(column)];
      gains.push_back(e);
      const int row = edges_[static_cast<std::size_t>(e)].row;
      if (row == start) break;
      losses.push_back(edge_to_row_[static_cast<std::size_t>(row)]);
      column = edges_[static_cast<std::size_t>(losses.back())].column;
    }
    int amount = std::min(demand_[static_cast<std::size_t>(start)], supply_[static_cast<std::size_t>(end)]);
    for (const int e : losses) amount = std::min(amount, flow_[static_cast<std::size_t>(e)]);
    for (const int e : gains) change_flow(e, amount);
    for (const int e : losses) change_flow(e, -amount);
    demand_[static_cast<std::size_t>(start)] -= amount;
    supply_[static_cast<std::size_t>(end)] -= amount;
  }

  void change_flow(int e, int amount) {
    auto& users = users_of_column_[static_cast<std::size_t>(edges_[static_cast<std::size_t>(e)].column)];
    int& flow = flow_[static_cast<std::size_t>(e)];
    if (flow == 0) users.push_back(e);
    flow += amount;
    if (flow == 0) users.erase(std::find(users.begin(), users.end(), e));
  }

  std::vector<int> demand_, supply_;
  int unassigned_column_ = 0;
  std::vector<Edge> edges_;
  std::vector<int> flow_;                          // [edge]
  std::vector<std::vector<int>> edges_of_row_;     // [row]: edge indices
  std::vector<std::vector<int>> users_of_column_;  // [column]: indices of edges with flow
  std::vector<std::int64_t> row_potential_, column_potential_;
  // State of the last search.
  std::vector<std::int64_t> row_distance_, column_distance_;
  // The edge through which each column was reached, and the edge with flow through which each row was
  // reached.
  std::vector<int> edge_to_column_, edge_to_row_;
  std::vector<bool> is_final_;
  std::vector<int> final_columns_, visited_rows_;
};

std::vector<TransportFlow> solve_greedily(const TransportProblem& problem) {
  std::vector<Edge> edges = problem.edges;
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return a.weight != b.weight ? a.weight > b.weight
                                : std::pair(a.row, a.column) < std::pair(b.row, b.column);
  });
  std::vector<int> demand = problem.demand, supply = problem.supply;
  std::vector<TransportFlow> flows;
  for (const Edge& edge : edges) {
    int& open_demand = demand[static_cast<std::size_t>(edge.row)];
    int& remaining = supply[static_cast<std::size_t>(edge.column)];
    const int amount = std::min(open_demand, remaining);
    if (amount == 0) continue;
    flows.push_back({edge.row, edge.column, amount});
    open_demand -= amount, remaining -= amount;
  }
  return flows;
}

// An upper bound on the weight: the total if every row (or every column) could choose first.
std::int64_t bound_by(const TransportProblem& problem, int Edge::*own_side, int Edge::*other_side,
                      const std::vector<int>& sizes, const std::vector<int>& other_sizes) {
  std::vector<Edge> edges = problem.edges;
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.weight > b.weight; });
  std::vector<int> remaining = sizes;
  std::int64_t bound = 0;
  for (const Edge& edge : edges) {
    int& available = remaining[static_cast<std::size_t>(edge.*own_side)];
    const int amount = std::min(available, other_sizes[static_cast<std::size_t>(edge.*other_side)]);
    bound += amount * edge.weight, available -= amount;
  }
  return bound;
}

std::int64_t weight_of(const TransportProblem& problem, const std::vector<TransportFlow>& flows) {
  std::vector<std::pair<std::pair<int, int>, std::int64_t>> weights;
  for (const Edge& edge : problem.edges) weights.push_back({{edge.row, edge.column}, edge.weight});
  std::sort(weights.begin(), weights.end());
  std::int64_t sum = 0;
  for (const TransportFlow& flow : flows) {
    const auto at = std::lower_bound(weights.begin(), weights.end(),
                                     std::pair(std::pair(flow.row, flow.column), std::int64_t{0}));
    sum += at->second * flow.amount;
  }
  return sum;
}

TransportResult solve_part(const TransportProblem& part, double max_work) {
  TransportResult result;
  const double num_operations =
      static_cast<double>(part.demand.size()) * static_cast<double>(part.edges.size());
  if (num_operations <= max_work) {
    result.flows = ExactTransport(part).solve();
    result.weight = result.bound = weight_of(part, result.flows);
    return result;
  }
  result.flows = solve_greedily(part);
  result.weight = weight_of(part, result.flows);
  result.bound = std::min(bound_by(part, &Edge::row, &Edge::column, part.demand, part.supply),
                          bound_by(part, &Edge::column, &Edge::row, part.supply, part.demand));
  result.is_exact = result.weight == result.bound;
  return result;
}

// Finds the connected component of each node. Nodes are the rows, followed by the columns.
class Parts {
 public:
  explicit Parts(const TransportProblem& problem)
      : num_rows_(static_cast<int>(problem.demand.size())),
        parent_(problem.demand.size() + problem.supply.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const Edge& edge : problem.edges)
      parent_[root(edge.row)] = static_cast<int>(root(num_rows_ + edge.column));
  }
  std::size_t of_row(int row) { return root(row); }
  std::size_t of_column(int column) { return root(num_rows_ + column); }

 private:
  std::size_t root(int node) {
    auto at = static_cast<std::size_t>(node);
    while (parent_[at] != static_cast<int>(at)) {
      parent_[at] = parent_[static_cast<std::size_t>(parent_[at])];
      at = static_cast<std::size_t>(parent_[at]);
    }
    return at;
  }
  int num_rows_;
  std::vector<int> parent_;
};

struct Part {
  TransportProblem problem;
  std::vector<int> rows, columns;  // indices in the whole problem
};

}  // namespace

TransportResult transport(const TransportProblem& problem, double max_work) {
  Parts numbering(problem);
  std::vector<Part> parts(problem.demand.size() + problem.supply.size());
  std::vector<int> row_in_part, column_in_part;
  for (int row = 0; row < static_cast<int>(problem.demand.size()); ++row) {
    Part& part = parts[numbering.of_row(row)];
    row_in_part.push_back(static_cast<int>(part.rows.size()));
    part.rows.push_back(row);
    part.problem.demand.push_back(problem.demand[static_cast<std::size_t>(row)]);
  }
  for (int column = 0; column < static_cast<int>(problem.supply.size()); ++column) {
    Part& part = parts[numbering.of_column(column)];
    column_in_part.push_back(static_cast<int>(part.columns.size()));
    part.columns.push_back(column);
    part.problem.supply.push_back(problem.supply[static_cast<std::size_t>(column)]);
  }
  for (const Edge& edge : problem.edges)
    parts[numbering.of_row(edge.row)].problem.edges.push_back(
        {row_in_part[static_cast<std::size_t>(edge.row)],
         column_in_part[static_cast<std::size_t>(edge.column)], edge.weight});
  TransportResult result;
  for (const Part& part : parts) {
    if (part.problem.edges.empty()) continue;
    const TransportResult solved = solve_part(part.problem, max_work);
    for (const TransportFlow& flow : solved.flows)
      result.flows.push_back({part.rows[static_cast<std::size_t>(flow.row)],
                              part.columns[static_cast<std::size_t>(flow.column)], flow.amount});
    result.weight += solved.weight, result.bound += solved.bound;
    result.is_exact = result.is_exact && solved.is_exact;
  }
  return result;
}

}  // namespace optimus
