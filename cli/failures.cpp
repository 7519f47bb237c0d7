// Implements failures.h.
#include "cli/failures.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/failure_speeds.h"
#include "cli/timelines.h"
#include "policy/learned_policy.h"
#include "trials/timeline_trial.h"

namespace optimus {

void declare(OptionTable& table, FailureOptions& options) {
  table.add("failures", options.trace, "TRACE",
            "replay a trace of machine failures, a timeline of conditions, or "
            "periodic:NODES,INTERVAL,OUTAGE,DURATION");
  table.add("policy", options.policies, "P[,P…]",
            "policies to replay: never (keeps the plan), always-best, threshold, lookahead, malleus, rule, "
            "learned, oracle; oobleck, varuna, bamboo, ours");
  table.add("batch", options.batch, "B", "with --failures: global batch size in sequences");
  table.add("seq", options.sequence_length, "S", "with --failures: sequence length in tokens");
  table.add_word("precision", options.precision, precision_words(),
                 "with --failures: precision of the model");
  table.add("devices-per-node", options.devices_per_node, "N", "number of devices per node in the trace");
  table.add("can-lose", options.failures, "F", "number of simultaneous node losses that plans must tolerate");
  table.add("restart", options.restart, "TIME", "time to restart after a failure (policy never)");
  table.add("node-start", options.node_start, "TIME",
            "time from a node's arrival until it can be used (default: 0; 45s with --throughput)");
  table.add("repeats", options.repeats, "N",
            "number of replays to average, with event times shifted by up to a step (default: 64; fewer if "
            "there are millions of steps)");
  table.add("throughput", options.throughput, "CSV",
            "table of measured speeds of --model for each number of nodes, used instead of predictions");
  table.add("halts", options.reconfiguration, "CSV",
            "with --throughput: table of the costs of plan changes in other systems");
  table.add("price", options.price, "X",
            "with --failures: price of a device per hour, in dollars (default: from the cluster file)");
  table.add("learned", options.learned, "FILE",
            "policy network for --policy learned (default: the built-in network)");
  table.add("recovery-costs", options.recovery_costs, "FILE",
            "JSON file with the costs of Optimus's own plan changes");
}

namespace {

AvailabilityTrace periodic_trace(const std::string& text) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() != 4)
    throw UsageError(
        "--failures periodic:{}: expected NODES,INTERVAL,OUTAGE,DURATION, for example periodic:8,15s,5s,24h",
        text);
  const std::int64_t nodes = parse_count(parts[0], "--failures periodic: nodes");
  const double every = parse_seconds(parts[1], "--failures periodic: interval").value,
               away = parse_seconds(parts[2], "--failures periodic: outage").value,
               length = parse_seconds(parts[3], "--failures periodic: duration").value;
  constexpr double kMaxFailures = 1e6;
  if (nodes < 1 || nodes > 100'000 || !(every > 0) || !(away > 0) || !(length > every) ||
      length / every > kMaxFailures)
    throw UsageError("--failures periodic:{}: expected positive numbers and at most {:.0f} failures", text,
                     kMaxFailures);
  return periodic_failures(static_cast<int>(nodes), every, away, length);
}

AvailabilityTrace open_trace(const FailureOptions& options) {
  constexpr std::string_view kPeriodic = "periodic:";
  if (options.trace.starts_with(kPeriodic)) return periodic_trace(options.trace.substr(kPeriodic.size()));
  return parse_trace(read_input_file(options.trace, kMaxTraceBytes), options.trace);
}

void check_failures(const FailureOptions& options) {
  if (options.devices_per_node < 1)
    throw UsageError("--devices-per-node: expected at least 1, got {}", options.devices_per_node);
  if (options.repeats && (*options.repeats < 1 || *options.repeats > 10'000))
    throw UsageError("--repeats: expected 1 to 10,000, got {}", *options.repeats);
  if (options.price && !(*options.price >= 0))
    throw UsageError("--price: expected at least 0, got {}", *options.price);
  if (options.failures < 0) throw UsageError("--can-lose: expected at least 0, got {}", options.failures);
}

// The result of one policy.
struct PolicyRow {
  std::string policy;
  double samples_per_second = 0, fraction = 0, seconds_lost = 0;
  int starts = 0, steps_lost = 0;
};

std::string speed_text(double number) {
  return number < 1000 ? fmt::format("{:.4g}", number) : short_count(number);
}

void show_rows(Console& console, const AvailabilityTrace& trace, const std::string& speeds,
               const std::vector<PolicyRow>& rows, double tokens,
               const std::optional<double>& dollars_per_second = {}) {
  OrderedJson json = OrderedJson::array();
  std::string output = fmt::format(
      "trace: {} nodes over {}, read as {}\nspeed: {}\n\n{:<10}{:>16}{:>12}{:>10}{:>14}{:>12}\n",
      trace.num_nodes, text(Seconds(trace.length)), trace.form, speeds, "policy",
      tokens > 1 ? "useful tokens/s" : "useful samples/s", "of oracle", "switches", "lost", "steps lost");
  for (const PolicyRow& row : rows) {
    const int switches = std::max(0, row.starts - 1);
    json.push_back({{"policy", row.policy},
                    {"useful_tokens_per_second", row.samples_per_second * tokens},
                    {"useful_samples_per_second", row.samples_per_second},
                    {"fraction_of_oracle", row.fraction},
                    {"switches", row.policy == "never" ? 0 : switches},
                    {"restarts", row.policy == "never" ? row.starts : 0},
                    {"seconds_lost", row.seconds_lost},
                    {"steps_lost", row.steps_lost}});
    if (dollars_per_second && row.samples_per_second > 0)
      json.back()["dollars_per_billion_tokens"] =
          *dollars_per_second / (row.samples_per_second * tokens) * 1e9;
    output += fmt::format("{:<10}{:>16}{:>12}{:>10}{:>14}{:>12}\n", row.policy,
                          speed_text(row.samples_per_second * tokens), percent(row.fraction), switches,
                          text(Seconds(row.seconds_lost)), row.steps_lost);
  }
  console.result(json, output);
}

PolicyRow never_row(const ReplayCase& replay_case, const Ideal& ideal, double restart) {
  ReplayOptions replay_options;
  replay_options.nodes_needed = replay_case.throughput.max_nodes();
  replay_options.step_seconds =
      replay_case.batch / replay_case.throughput.at(replay_case.throughput.max_nodes());
  replay_options.tokens_per_step = replay_case.batch,
  replay_options.restart_seconds = restart + replay_case.ready_seconds;
  const Replay result = replay_one_plan(replay_case.trace, replay_options);
  const double samples = result.useful_tokens_per_second * replay_case.trace.length;
  return {"never",
          result.useful_tokens_per_second,
          samples / std::max(1e-12, ideal.samples),
          std::max(0.0, ideal.seconds - samples / replay_case.batch * replay_options.step_seconds),
          result.restarts,
          result.steps_lost};
}

// Returns the number of repeats that can be computed in a few seconds.
int default_repeats(const ReplayCase& replay_case) {
  double fastest = 0;
  for (const double speed : replay_case.throughput.samples_per_second) fastest = std::max(fastest, speed);
  const double steps = replay_case.trace.length * fastest / replay_case.batch;
  return static_cast<int>(std::clamp(5e6 / std::max(1.0, steps), 1.0, 64.0));
}

bool is_adaptive_policy(const std::string& policy) {
  const std::vector<std::string> names = policy_words();
  return policy != "never" && policy != "oracle" &&
         std::find(names.begin(), names.end(), policy) != names.end();
}

std::vector<std::string> policies_in(const std::string& list) {
  std::vector<std::string> known_names = policy_words(), policies;
  for (const std::string& system : system_words()) known_names.push_back(system);
  for (const std::string& word : split(list, ',')) {
    policies.emplace_back(trim(word));
    if (std::find(known_names.begin(), known_names.end(), policies.back()) == known_names.end())
      throw UsageError("--policy: {} is not one of {}{}", in_quotes(policies.back()), join(known_names, ", "),
                       did_you_mean(policies.back(), known_names));
  }
  return policies;
}

// Runs one of the policies in policy/decide.h and compares it with the optimum in hindsight.
PolicyRow trial_row(const std::string& policy, const ReplayCase& replay_case, const FailureOptions& options) {
  const TrialCase trial = trial_of(replay_case, options.devices_per_node);
  Policy tried_policy = parse_policy(policy, "--policy");
  LearnedPolicy network;
  if (tried_policy.kind == PolicyKind::learned && !options.learned.empty())
    network = read_learned_policy(options.learned), tried_policy.network = &network;
  const TrialOutcome outcome = run_trial(tried_policy, trial);
  const double best = hindsight(trial).useful_steps;
  return {policy,
          outcome.useful_steps * replay_case.batch / replay_case.trace.length,
          outcome.useful_steps / std::max(1e-12, best),
          outcome.seconds_lost,
          outcome.switches + 1,
          outcome.steps_lost};
}

PolicyRow row_of(const std::string& policy, const FailureOptions& options, const ReplaySpeeds& speeds,
                 const RecoveryCosts& costs, const AvailabilityTrace& trace, bool is_hindsight) {
  ReplayCase replay_case{.trace = trace, .throughput = speeds.throughput, .batch = speeds.batch};
  replay_case.ready_seconds = speeds.ready_seconds, replay_case.costs = costs;
  if (!speeds.tables) replay_case.ticks_per_second = 1e6;  // a step may take only milliseconds
  replay_case.reconfiguration = reconfiguration_costs_for(speeds, System::ours);
  if (is_adaptive_policy(policy) || (is_hindsight && policy == "oracle"))
    return trial_row(policy, replay_case, options);
  Ideal ideal = ideal_of(replay_case);
  if (is_hindsight)
    ideal.samples =
        hindsight(trial_of(replay_case, options.devices_per_node)).useful_steps * replay_case.batch;
  if (policy == "oracle") return {policy, ideal.samples / trace.length, 1, 0, 0, 0};
  if (policy == "never") return never_row(replay_case, ideal, options.restart.value);
  const System system = parse_system(policy, "--policy");
  replay_case.reconfiguration = reconfiguration_costs_for(speeds, system);
  const ReplayOutcome outcome =
      mean_replay(system, replay_case, options.repeats.value_or(default_repeats(replay_case)));
  const double fraction = is_hindsight ? outcome.goodput * trace.length / std::max(1e-12, ideal.samples)
                                       : outcome.fraction_of_ideal;
  return {policy, outcome.goodput, fraction, outcome.seconds_lost, outcome.starts, outcome.steps_lost};
}

}  // namespace

int replay_policies(Console& console, const FailureOptions& options, ModelOptions model,
                    const std::string& cluster, const Constants& constants) {
  check_failures(options);
  const std::vector<std::string> policies = policies_in(options.policies);
  if (!options.trace.starts_with("periodic:"))
    if (const std::string text = read_input_file(options.trace, kMaxTraceBytes); looks_like_timeline(text))
      return replay_timeline(console, {options, model, cluster, constants}, text);
  const AvailabilityTrace trace = open_trace(options);
  if (!(trace.length > 0)) throw UserError("{}: the trace has no events", options.trace);
  const ReplaySpeeds speeds = options.throughput.empty()
                                  ? speeds_from_templates(options, model, cluster, constants, trace)
                                  : speeds_from_table(options, model.model);
  RecoveryCosts costs = recovery_costs(options, speeds.node_bytes_per_second);
  // Master weights and two moments in fp32, distributed over the smallest number of nodes on which the model
  // fits.
  constexpr double kBytesOfState = 12;
  const double bytes_per_node = kBytesOfState * speeds.parameters / speeds.min_nodes;
  if (costs.join_bytes == 0) costs.join_bytes = bytes_per_node;
  // A node that stores the whole model receives nothing when other nodes are lost.
  if (costs.loss_bytes == 0 && speeds.min_nodes > 1) costs.loss_bytes = bytes_per_node;
  std::vector<PolicyRow> rows;
  // Adaptive policies pay for their plan changes. If one is replayed, the oracle pays for its changes, too.
  const bool is_hindsight = std::any_of(policies.begin(), policies.end(), is_adaptive_policy);
  for (const std::string& policy : policies)
    rows.push_back(row_of(policy, options, speeds, costs, trace, is_hindsight));
  show_rows(console, trace, speeds.description, rows, speeds.tokens, speeds.dollars_per_second);
  return 0;
}

int replay_plan(Console& console, const FailureOptions& options, const Plan& plan, double step_seconds) {
  check_failures(options);
  if (options.policies != "never")
    throw UserError(
        "--policy: --plan only supports the policy never, because it keeps one plan; for {}, pass --model, "
        "--cluster and "
        "--batch instead",
        in_quotes(options.policies));
  const AvailabilityTrace trace = open_trace(options);
  ReplayOptions static_options{.step_seconds = step_seconds, .restart_seconds = options.restart.value};
  static_options.nodes_needed = (num_devices(plan) + options.devices_per_node - 1) / options.devices_per_node;
  static_options.tokens_per_step = static_cast<double>(plan.batch);
  const Replay result = replay_one_plan(trace, static_options);
  const PolicyRow row{"never",
                      result.useful_tokens_per_second,
                      result.fraction_of_oracle,
                      result.seconds_lost,
                      result.restarts,
                      result.steps_lost};
  show_rows(console, trace, "one plan, never changed", {row}, static_cast<double>(plan.sequence_length));
  return 0;
}

}  // namespace optimus
