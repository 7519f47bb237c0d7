// Formats the search result as text, JSON and SVG.
#pragma once

#include <string>

#include "search/search.h"

namespace optimus {

// Duration and cost of training with a given number of tokens.
struct RunEstimate {
  double tokens = 0, steps = 0, days = 0;
  std::optional<double> cost;            // in the unit of --price
  std::optional<double> megawatt_hours;  // energy of the devices, without hosts and network
};
RunEstimate estimate_run(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result,
                         double tokens);

std::string search_text(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result);
std::string estimate_text(const RunEstimate& estimate);
// The result does not contain the key search.seconds, which the caller adds.
OrderedJson search_json(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result);
OrderedJson estimate_json(const RunEstimate& estimate);

// Returns one self-contained SVG that shows the devices and layers of each stage, its memory by category, and
// its slots over time.
std::string search_svg(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result);

}  // namespace optimus
