// What the search found, for people and programs.
#pragma once

#include <string>

#include "search/search.h"

namespace optimus {

// What a whole run of so many tokens takes at the plan's pace.
struct RunEstimate {
  double tokens = 0, steps = 0, days = 0;
  std::optional<double> cost;            // in the unit of --price
  std::optional<double> megawatt_hours;  // of the devices alone
};
RunEstimate estimate_run(const Demand& demand, const Ground& ground, const SearchResult& result,
                         double tokens);

std::string search_text(const Demand& demand, const Ground& ground, const SearchResult& result);
std::string estimate_text(const RunEstimate& estimate);
// Without search.seconds, which the caller knows.
OrderedJson search_json(const Demand& demand, const Ground& ground, const SearchResult& result);
OrderedJson estimate_json(const RunEstimate& estimate);

// One self-contained picture: devices and layers of each stage, its memory by cause, and its slots in time.
std::string search_svg(const Demand& demand, const Ground& ground, const SearchResult& result);

}  // namespace optimus
