// Replays a timeline of conditions under each policy and prints the results.
#include "cli/timelines.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/open_model.h"
#include "cli/failure_speeds.h"
#include "cluster/open.h"
#include "plan/describe.h"
#include "policy/learned_policy.h"
#include "trials/timeline_trial.h"

namespace optimus {
namespace {

// Returns the CPU time of this process, so that other load on the machine is not counted as decision time.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<Policy> policies_of(const FailureOptions& options) {
  std::vector<Policy> policies;
  const std::vector<std::string> names = policy_words();
  for (const std::string& part : split(options.policies, ',')) {
    const std::string word(trim(part));
    if (std::find(names.begin(), names.end(), word) == names.end())
      throw UserError("--policy: with a timeline, expected one of {}, got {}{}", join(names, ", "),
                      in_quotes(word), did_you_mean(word, names));
    policies.push_back(parse_policy(word, "--policy"));
  }
  return policies;
}

}  // namespace

int replay_timeline(Console& console, const TimelineTask& task, const std::string& content) {
  const std::vector<Policy> policies = policies_of(task.options);
  const ConditionTimeline line = parse_timeline(content, task.options.trace);
  ModelOptions model_options = task.model;
  if (model_options.model.empty() || task.cluster.empty() || !task.options.batch)
    throw UsageError("--failures with a timeline needs --model M, --cluster C and --batch B");
  model_options.model = model_path_of(model_options.model);
  const ModelSpec model = resolve(model_options);
  const Cluster cluster = open_cluster(task.cluster);
  Demand demand{model, cluster, optimus_software(), task.constants};
  demand.batch = *task.options.batch;
  demand.sequence_length = task.options.sequence_length.value_or(model.max_positions);
  demand.precision = parse_precision(task.options.precision, "--precision");
  const RecoveryCosts costs = recovery_costs(task.options, receive_bytes_per_second(demand.cluster, 1));
  const SearchResult start = search(demand, ClusterView(cluster));
  ResponseTimer responses{.clock = cpu_seconds};
  ResponseLimits limits;
  for (const Alternative& other : start.alternatives)
    if (other.peak_memory.fits()) limits.known_plans.push_back(other.plan);
  const TrialCase trial = trial_of(line, demand, start.plan, costs, limits, &responses);
  const double best_useful_steps = hindsight(trial).useful_steps;
  const double tokens = static_cast<double>(demand.batch * demand.sequence_length);
  const std::optional<double> dollars = dollars_per_second(task.options, cluster);
  OrderedJson json = OrderedJson::array();
  std::string output = fmt::format(
      "{} conditions and {} losses over {}; starts with {} on {}; {} plans compared, longest decision "
      "{}\n\n{:<12}{:>16}{:>12}{:>10}{:>14}{:>12}\n",
      line.conditions.size(), line.losses.size(), text(Seconds(line.length)), short_text(start.plan),
      cluster.name(), trial.modes.size(), text(Seconds(responses.max_seconds)), "policy", "useful tokens/s",
      "of oracle", "switches", "paused", "steps lost");
  LearnedPolicy own_policy;
  if (!task.options.learned.empty()) own_policy = read_learned_policy(task.options.learned);
  for (Policy policy : policies) {
    if (!task.options.learned.empty()) policy.network = &own_policy;
    const TrialOutcome outcome = run_trial(policy, trial);
    const double speed = outcome.useful_steps * tokens / line.length;
    json.push_back({{"policy", text(policy.kind)},
                    {"useful_tokens_per_second", speed},
                    {"fraction_of_oracle", outcome.useful_steps / std::max(1e-12, best_useful_steps)},
                    {"switches", outcome.switches},
                    {"seconds_lost", outcome.seconds_lost},
                    {"steps_lost", outcome.steps_lost},
                    {"longest_decision_seconds", responses.max_seconds}});
    if (dollars && speed > 0) json.back()["dollars_per_billion_tokens"] = *dollars / speed * 1e9;
    output += fmt::format("{:<12}{:>16}{:>12}{:>10}{:>14}{:>12}\n", text(policy.kind), short_count(speed),
                          percent(outcome.useful_steps / std::max(1e-12, best_useful_steps)),
                          outcome.switches, text(Seconds(outcome.seconds_lost)), outcome.steps_lost);
  }
  console.result(json, output);
  return 0;
}

}  // namespace optimus
