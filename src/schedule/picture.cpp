// See picture.h.
#include "schedule/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace optimus {
namespace {

// (is gradient, micro-batch, virtual stage) of a slot's result. Both kinds of backward pass result in an
// input gradient.
using Result = std::tuple<bool, int, int>;

std::optional<Result> required_input(const Slot& slot, int stage, int num_stages, int num_chunks) {
  const int chunk_index = slot.chunk * num_stages + stage, last = num_stages * num_chunks - 1;
  switch (slot.work) {
    case Work::forward:
      if (chunk_index == 0) return std::nullopt;
      return Result{false, slot.microbatch, chunk_index - 1};
    case Work::backward:
    case Work::backward_input:
      if (chunk_index == last) return Result{false, slot.microbatch, chunk_index};
      return Result{true, slot.microbatch, chunk_index + 1};
    case Work::backward_weight:
    case Work::update:
      return std::nullopt;  // the input gradient precedes it in the same order
  }
  return std::nullopt;
}

}  // namespace

double unit_time(Work work) {
  switch (work) {
    case Work::forward:
    case Work::backward_input:
    case Work::backward_weight:
      return 1;
    case Work::backward:
      return 2;
    case Work::update:
      return 0;
  }
  return 0;
}

SlotTimes unit_times(Schedule schedule, int num_stages, int num_microbatches, int num_chunks) {
  SlotTimes times;
  for (int s = 0; s < num_stages; ++s) {
    times.orders.push_back(order_of(schedule, {s, num_stages, num_microbatches, num_chunks}));
    times.start.emplace_back();
  }
  std::map<Result, double> end_time_of;
  std::vector<double> stage_time(static_cast<std::size_t>(num_stages));
  bool has_progress = true;
  while (has_progress) {
    has_progress = false;
    for (std::size_t s = 0; s < times.orders.size(); ++s)
      while (times.start[s].size() < times.orders[s].size()) {
        const Slot& slot = times.orders[s][times.start[s].size()];
        double start = stage_time[s];
        if (const auto input = required_input(slot, static_cast<int>(s), num_stages, num_chunks)) {
          const auto input_end = end_time_of.find(*input);
          if (input_end == end_time_of.end()) break;
          start = std::max(start, input_end->second);
        }
        times.start[s].push_back(start);
        stage_time[s] = start + unit_time(slot.work);
        if (slot.work != Work::backward_weight && slot.work != Work::update)
          end_time_of[{slot.work != Work::forward, slot.microbatch,
                       slot.chunk * num_stages + static_cast<int>(s)}] = stage_time[s];
        times.length = std::max(times.length, stage_time[s]);
        has_progress = true;
      }
  }
  for (std::size_t s = 0; s < times.orders.size(); ++s)
    ensure(times.start[s].size() == times.orders[s].size(), "stage {} of {} stops after {} of {} slots", s,
           num_stages, times.start[s].size(), times.orders[s].size());
  for (const Slot& slot : times.orders.front()) times.busy += unit_time(slot.work);
  return times;
}

namespace {

// "F3", or "F3.0" if stages have several chunks.
std::string slot_label(const Slot& slot, bool has_chunks) {
  std::string result = text(Order{slot});
  return has_chunks && slot.chunk == 0 ? result + ".0" : result;
}

std::string draw_stage(const SlotTimes& times, std::size_t stage, std::size_t width, std::size_t columns) {
  const bool has_chunks = std::any_of(times.orders[stage].begin(), times.orders[stage].end(),
                                      [](const Slot& slot) { return slot.chunk > 0; });
  std::string row(static_cast<std::size_t>(times.length) * width, ' ');
  for (std::size_t i = 0; i < times.orders[stage].size(); ++i) {
    const Slot& slot = times.orders[stage][i];
    const double units = unit_time(slot.work);
    if (units == 0) continue;
    std::string cell = slot_label(slot, has_chunks).substr(0, width);
    cell.resize(static_cast<std::size_t>(units) * width, '-');
    if (units * static_cast<double>(width) > 1) cell.back() = ' ';
    row.replace(static_cast<std::size_t>(times.start[stage][i]) * width, cell.size(), cell);
  }
  if (row.size() > columns) row = row.substr(0, columns - 1) + ">";
  return row;
}

}  // namespace

std::string draw_timeline(const Plan& plan, int columns) {
  std::string result;
  for (std::size_t p = 0; p < plan.pipelines.size(); ++p) {
    const Pipeline& pipeline = plan.pipelines[p];
    const auto num_chunks = static_cast<int>(pipeline.stages.front().chunks.size());
    const auto num_stages = static_cast<int>(pipeline.stages.size()),
               m = static_cast<int>(pipeline.microbatches.size());
    constexpr std::int64_t kMaxSlots = 1'000'000;
    if (static_cast<std::int64_t>(num_stages) * m * num_chunks > kMaxSlots)
      throw UserError("pipeline {} has {} stages and {} micro-batches, which is too many to draw", p,
                      num_stages, m);
    const SlotTimes times = unit_times(plan.schedule, num_stages, m, num_chunks);
    const std::size_t width = slot_label({Work::forward, m - 1, num_chunks - 1}, num_chunks > 1).size() + 1;
    result += fmt::format("pipeline {}: {}, {} stages, {} micro-batches; bubble {:.1f} % of the work\n", p,
                          text(plan.schedule), num_stages, m, 100 * times.bubble());
    for (std::size_t s = 0; s < times.orders.size(); ++s)
      result +=
          fmt::format("stage {:<3} {}\n", s, draw_stage(times, s, width, static_cast<std::size_t>(columns)));
    if (times.length * static_cast<double>(width) > columns)
      result += fmt::format("(shows the first {} of {:.0f} time units; a wider terminal shows more)\n",
                            columns / static_cast<int>(width), times.length);
  }
  return result;
}

}  // namespace optimus
