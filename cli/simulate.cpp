// optimus simulate --plan P --cluster C --model M: what a step would take; --runs CSV: how well that meets measured runs;
// --failures TRACE: what a plan would get done on machines that come and go.

#include "cli/command.h"
#include "cluster/open.h"
#include "model/options.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "run/open_model.h"
#include "simulate/accuracy.h"
#include "simulate/availability.h"
#include "simulate/report.h"

namespace optimus {
namespace {

constexpr Bytes kLargestTable{std::int64_t{64} << 20};

class Simulate final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("plan", plan_, "FILE", "the plan to time");
    table.add("cluster", cluster_, "C", "h100x512, a100x16+v100x32, or a JSON file");
    optimus::declare(table, model_);
    table.add("software", software_, "NAME", "which trainer runs it (default: optimus)");
    table.add("timeline", wants_timeline_, "draw the stages in time");
    table.add("trace", trace_, "FILE", "write the stages in time for Perfetto");
    table.add("runs", runs_, "CSV", "predict measured runs and compare");
    table.add("failures", failures_, "TRACE", "replay a trace of machines that come and go with the plan");
    table.add("policy", policy_, "P", "what to do then (default: never, which keeps the plan)");
    table.add("devices-per-node", devices_per_node_, "N", "devices of a node of the trace");
    table.add("restart", restart_, "TIME", "how long starting again takes");
  }

  int run(Console& console) override {
    if (!runs_.empty()) return compare(console);
    if (plan_.empty() || cluster_.empty())
      throw UsageError(
          "give --plan FILE and --cluster C to time a plan, or --runs CSV to compare with measured runs");
    return predict(console);
  }

 private:
  int compare(Console& console) {
    const std::string text = value_or_throw(read_file(runs_, kLargestTable));
    const std::vector<Run> runs = read_runs(parse_csv(text, runs_.string()));
    const std::vector<RunOutcome> outcomes = predict_runs(runs, fitted_constants());
    console.result(accuracy_json(runs, outcomes), accuracy_text(runs, outcomes));
    return 0;
  }

  const Software& software() const {
    if (software_.empty()) return our_software();
    if (const Software* found = find_software(software_)) return *found;
    std::vector<std::string> names;
    for (const Software& known : all_software()) names.emplace_back(known.name);
    throw UserError("--software: {} is not known{}; known are {}", in_quotes(software_),
                    did_you_mean(software_, names), join(names, ", "));
  }

  int predict(Console& console) {
    const Plan plan = read_plan(plan_);
    if (model_.model.empty()) model_.model = plan.model;
    if (model_.model.empty()) throw UserError("{}: the plan names no model; give --model M", plan_.string());
    model_.model = model_place(model_.model);
    const ModelSpec model = resolve(model_);
    validate(plan, model, plan_.string());
    const Cluster cluster = open_cluster(cluster_);
    const DeviceMap map = DeviceMap::of_present(cluster);
    int most = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages)
        for (const int device : stage.devices) most = std::max(most, device + 1);
    if (most > map.size())
      throw UserError("{}: names device {}, but {} has {} devices", plan_.string(), most - 1, cluster.name(),
                      map.size());
    const Setup setup{plan, model, cluster, map, software(), format_of(plan.precision)};
    const StepPrediction step = StepSimulator(setup).run(fitted_constants());
    if (!failures_.empty()) return replay(console, plan, step);
    std::string shown = prediction_text(step, setup);
    if (wants_timeline_) shown += "\n" + draw_step(step, terminal_columns(130) - 9);
    if (!trace_.empty()) {
      RealFileSystem files;
      value_or_throw(write_atomically(files, trace_, perfetto_text(step)));
      shown += fmt::format("\n{} opens in ui.perfetto.dev\n", trace_.string());
    }
    console.result(prediction_json(step, setup), shown);
    return 0;
  }

  int replay(Console& console, const Plan& plan, const StepPrediction& step) {
    if (policy_ != "never")
      throw UserError("--policy: {} is not one of never; others need a planner, which is not there yet",
                      in_quotes(policy_));
    if (devices_per_node_ < 1)
      throw UsageError("--devices-per-node: {} is not at least 1", devices_per_node_);
    const AvailabilityTrace trace =
        parse_trace(value_or_throw(read_file(failures_, kLargestTable)), failures_.string());
    ReplayOptions options{.step_seconds = step.seconds, .restart_seconds = restart_.value};
    options.nodes_needed = (num_devices(plan) + devices_per_node_ - 1) / devices_per_node_;
    options.tokens_per_step = static_cast<double>(plan.batch) * static_cast<double>(plan.sequence_length);
    const Replay result = replay_one_plan(trace, options);
    const OrderedJson row = {{"policy", policy_},
                             {"useful_tokens_per_second", result.useful_tokens_per_second},
                             {"fraction_of_oracle", result.fraction_of_oracle},
                             {"switches", 0},
                             {"restarts", result.restarts},
                             {"seconds_lost", result.seconds_lost},
                             {"steps_lost", result.steps_lost}};
    console.result(
        OrderedJson::array({row}),
        fmt::format(
            "{}: {} useful tokens/s, {:.1f} % of what never losing anything would give; {} starts, {} lost, "
            "{} steps lost\n",
            policy_, short_count(result.useful_tokens_per_second), result.fraction_of_oracle * 100,
            result.restarts, text(Seconds(result.seconds_lost)), result.steps_lost));
    return 0;
  }

  Path plan_, trace_, runs_, failures_;
  std::string cluster_, software_, policy_ = "never";
  ModelOptions model_;
  bool wants_timeline_ = false;
  int devices_per_node_ = 1;
  Seconds restart_{60};
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<Simulate>(); }

}  // namespace optimus
