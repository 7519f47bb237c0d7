// See demand.h.
#include "search/demand.h"

#include <algorithm>

namespace optimus {

void parse(Range& target, std::string_view text, std::string_view setting_name) {
  const auto number = [&](std::string_view part) {
    const std::int64_t value = parse_count(part, setting_name);
    if (value < 0 || value > INT_MAX)
      throw UserError("{}: {} is not in the range 0 to {}", setting_name, in_quotes(part), INT_MAX);
    return static_cast<int>(value);
  };
  const auto dots = text.find("..");
  if (dots == std::string_view::npos) {
    target.min = target.max = number(text);
    return;
  }
  target = {number(text.substr(0, dots)), number(text.substr(dots + 2))};
  if (target.min > target.max)
    throw UserError("{}: the range {} is empty; specify the smaller number first, as in 4..8", setting_name,
                    in_quotes(text));
}

std::string text(const Range& range) {
  if (range.min == range.max) return std::to_string(range.min);
  return fmt::format("{}..{}", range.min, range.max);
}

void declare_layout(OptionTable& table, Constraints& c) {
  table.add("tp", c.tp, "N|N..M", "tensor-parallel size");
  table.add("pp", c.pp, "N|N..M", "number of pipeline stages");
  table.add("dp", c.dp, "N|N..M", "data-parallel size (number of replicas)");
  table.add("cp", c.cp, "N|N..M", "context-parallel size (parts of a sequence)");
  table.add("ep", c.ep, "N|N..M", "expert-parallel size");
  table.add("zero", c.zero, "N|N..M",
            "ZeRO stage, 0 to 3: state that is sharded over data-parallel replicas");
  table.add_word(
      "schedule", c.schedule, schedule_words(),
      "pipeline schedule; pipedream and pipemare change convergence, so only train accepts them and the "
      "planner never chooses them");
  table.add("chunks", c.chunks, "N|N..M", "number of layer chunks per stage (interleaved schedule)");
  table.add(
      "max-memory", c.max_memory, "SIZE",
      "memory limit per device for everything that a process allocates (default: the device's capacity)");
  table.add("offload", c.offload, "allow optimizer state in host memory");
  table.add("no-zero3", c.no_zero3, "never shard parameters");
}

void declare(OptionTable& table, Constraints& c) {
  declare_layout(table, c);
  table.add("microbatch", c.microbatch, "N|N..M", "micro-batch size, in sequences per replica");
  table.add_word("recompute", c.recompute, recompute_words(),
                 "activations to recompute in the backward pass");
}

void declare(OptionTable& table, Failures& failures) {
  table.add("mtbf", failures.mtbf, "T",
            "mean time between failures of one device; the planner weighs a second copy of sharded "
            "state against its cost (default: devices do not fail, but a run that can continue after losing "
            "workers plans the copy anyway)");
}

void check(const Constraints& c) {
  const auto at_least_one = [](const char* name, const std::optional<Range>& range) {
    if (range && range->max < 1) throw UsageError("--{}: expected at least 1, got {}", name, text(*range));
  };
  at_least_one("tp", c.tp), at_least_one("pp", c.pp), at_least_one("dp", c.dp), at_least_one("cp", c.cp);
  at_least_one("ep", c.ep), at_least_one("chunks", c.chunks), at_least_one("microbatch", c.microbatch);
  if (c.zero && c.zero->min > 3) throw UsageError("--zero: expected 0 to 3, got {}", text(*c.zero));
  try {
    if (!c.recompute.empty()) (void)parse_recompute(c.recompute, "--recompute");
    if (!c.schedule.empty() && is_asynchronous(parse_schedule(c.schedule, "--schedule")))
      throw UserError(
          "--schedule: {} changes convergence and is never planned; use it with train, or in a plan file",
          c.schedule);
  } catch (const UserError& error) {
    throw UsageError("{}", error.what());
  }
}

void check(const Demand& demand) {
  if (demand.goal == Goal::throughput) return;
  for (const DeviceType& type : demand.cluster.profile().types) {
    if (demand.goal == Goal::cost && !demand.price && !type.price_per_hour)
      throw UserError("--goal cost needs the price of {} per hour; set --price", type.name);
    if (demand.goal == Goal::energy && !demand.watts && type.watts <= 0)
      throw UserError("--goal energy needs the power of {}; set --watts", type.name);
  }
}

Demand demand_on(const Demand& demand, const Cluster& cluster, const Constants& constants) {
  Demand copy{demand.model, cluster, demand.software, constants};
  copy.batch = demand.batch, copy.sequence_length = demand.sequence_length, copy.precision = demand.precision;
  copy.constraints = demand.constraints, copy.goal = demand.goal, copy.failures = demand.failures;
  copy.price = demand.price, copy.watts = demand.watts;
  copy.shares_memory = demand.shares_memory, copy.supports_offload = demand.supports_offload;
  return copy;
}

double cost_rate(const Demand& demand, const DeviceMap& map, int num_devices) {
  if (demand.goal == Goal::throughput) return 1;
  const auto of_type = [&](const DeviceType& type) {
    if (demand.goal == Goal::energy) return demand.watts.value_or(type.watts);
    return demand.price.value_or(type.price_per_hour.value_or(0)) / 3600;
  };
  const HardwareProfile& profile = demand.cluster.profile();
  if (profile.types.size() == 1) return of_type(profile.types.front()) * num_devices;
  double sum = 0;
  for (int i = 0; i < std::min(num_devices, map.size()); ++i)
    sum += of_type(demand.cluster.type_of(map[VirtualDevice{i}]));
  return sum;
}

}  // namespace optimus
