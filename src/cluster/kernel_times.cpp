// See kernel_times.h.
#include "cluster/kernel_times.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {

// The position of a size on an axis: the index of the grid point to its left, and the fraction (0 to 1) of
// the logarithmic distance to the next grid point.
std::pair<std::size_t, double> position_on_axis(const std::vector<double>& axis, double size) {
  if (axis.size() == 1 || !(size > axis.front())) return {0, 0};
  if (size >= axis.back()) return {axis.size() - 2, 1};
  const auto right = std::upper_bound(axis.begin(), axis.end(), size);
  const auto left = right - 1;
  return {static_cast<std::size_t>(left - axis.begin()), std::log(size / *left) / std::log(*right / *left)};
}

}  // namespace

double RateTable::at(std::span<const double> sizes) const {
  ensure(sizes.size() == axes.size(), "got {} sizes for a table with {} axes", sizes.size(), axes.size());
  std::array<std::pair<std::size_t, double>, 3> positions{};
  for (std::size_t a = 0; a < axes.size(); ++a) positions[a] = position_on_axis(axes[a], sizes[a]);
  double logarithm = 0;
  for (unsigned corner = 0; corner < 1u << axes.size(); ++corner) {
    double weight = 1;
    std::size_t index = 0;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const auto [left, part] = positions[a];
      const bool is_right = (corner >> a & 1) != 0;
      weight *= is_right ? part : 1 - part;
      index = index * axes[a].size() + std::min(left + is_right, axes[a].size() - 1);
    }
    if (weight > 0) logarithm += weight * std::log(rates[index]);
  }
  return std::exp(logarithm);
}

double KernelTimes::seconds(std::string_view table, double amount,
                            std::initializer_list<double> sizes) const {
  const auto table_entry = tables.find(table);
  if (table_entry == tables.end()) return -1;
  return amount / table_entry->second.at(std::vector<double>(sizes));
}

void validate(const KernelTimes& times, const std::string& location) {
  for (const double seconds : {times.launch_seconds, times.step_seconds})
    if (!(seconds >= 0 && seconds < 60))
      throw UserError("{}: expected a host time from 0 to 60 seconds, got {}", location, seconds);
  for (const auto& [name, table] : times.tables) {
    const bool is_gemm = name.starts_with("product") || name.starts_with("narrow."),
               is_attention = name.starts_with("attention");
    const std::size_t num_axes = is_gemm ? 3 : is_attention ? 2 : 1;
    if (table.axes.size() != num_axes)
      throw UserError("{}: {}: expected {} axes, got {}", location, name, num_axes, table.axes.size());
    std::size_t points = 1;
    for (const std::vector<double>& axis : table.axes) {
      double previous_size = 0;
      for (const double size : axis) {
        if (!(std::isfinite(size) && size > previous_size))
          throw UserError("{}: sizes of {}: expected ascending sizes above 0, got {} after {}", location,
                          name, size, previous_size);
        previous_size = size;
      }
      points *= axis.size();
      if (points > kMaxTableRates) break;
    }
    if (points == 0 || points != table.rates.size())
      throw UserError("{}: {}: got {} rates, but the axes require {}", location, name, table.rates.size(),
                      points);
    for (const double rate : table.rates)
      if (!(rate > 0 && std::isfinite(rate)))
        throw UserError("{}: rates of {}: expected positive numbers, got {}", location, name, rate);
  }
}

}  // namespace optimus
