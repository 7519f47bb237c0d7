// optimus simulate --plan P --cluster C --model M: predicts the time of a step. --runs CSV: compares
// predictions with measured runs. --failures TRACE: replays a plan or policies on machines that fail and
// return. --refit RUN: fits the constants of the cost model to a run's measured steps.

#include "checkpoint/open_model.h"
#include "cli/command.h"
#include "cli/failures.h"
#include "cli/software.h"
#include "cluster/open.h"
#include "cost/constants_json.h"
#include "model/options.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "simulate/accuracy.h"
#include "simulate/refit.h"
#include "simulate/report.h"

namespace optimus {
namespace {

constexpr Bytes kMaxTableBytes{std::int64_t{64} << 20}, kMaxMetricsBytes{std::int64_t{1} << 30};

class Simulate final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("plan", plan_, "FILE", "plan to simulate");
    table.add("cluster", cluster_, "C",
              "h100x512, a100x16+v100x32, herex2 (this machine as measured, two workers), or a JSON file");
    optimus::declare(table, model_);
    table.add("software", software_, "NAME", "trainer that runs the plan (default: optimus)");
    table.add("timeline", wants_timeline_, "draw the stages over time");
    table.add("trace", trace_, "FILE", "write a Perfetto trace of stages, lanes and instructions");
    table.add("constants", constants_file_, "FILE", "cost model constants, as written by --refit");
    table.add("history", history_, "FILE|here",
              "correct the prediction with the measurements of past runs; here: this machine's history");
    table.add("refit", refit_, "RUN[,RUN…]",
              "fit the cost model constants to the steps of these runs, on --cluster");
    table.add("out", out_, "FILE",
              "output file of --refit (default: constants.json in the first run's folder)");
    table.add("runs", runs_, "CSV", "table of measured runs to compare with predictions");
    optimus::declare(table, failures_);
  }

  int run(Console& console) override {
    constants_ = constants_file_.empty() ? builtin_constants() : read_constants(constants_file_);
    if (!runs_.empty()) return compare(console);
    if (!refit_.empty()) return refit_constants(console);
    if (plan_.empty() && !failures_.trace.empty())
      return replay_policies(console, failures_, model_, cluster_, constants_.constants);
    if (plan_.empty() || cluster_.empty())
      throw UsageError(
          "pass --plan FILE and --cluster C to simulate a plan, or --runs CSV to compare with measured runs");
    return predict(console);
  }

 private:
  int compare(Console& console) {
    const std::string text = read_input_file(runs_, kMaxTableBytes);
    const std::vector<Run> runs = read_runs(parse_csv(text, runs_.string()));
    const std::vector<RunOutcome> outcomes = predict_runs(runs, constants_.constants);
    console.result(accuracy_json(runs, outcomes), accuracy_text(runs, outcomes));
    return 0;
  }

  static void refuse_missing_devices(const Plan& plan, const Path& source, const Cluster& cluster,
                                     const DeviceMap& map) {
    int maximum = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages)
        for (const int device : stage.devices) maximum = std::max(maximum, device + 1);
    if (maximum > map.size())
      throw UserError("{}: the plan uses device {}, but {} has only {} devices", source.string(), maximum - 1,
                      cluster.name(), map.size());
  }

  int predict(Console& console) {
    const Plan plan = read_plan(plan_);
    if (model_.model.empty()) model_.model = plan.model;
    if (model_.model.empty())
      throw UserError("{}: the plan does not name its model; pass --model M", plan_.string());
    model_.model = model_path_of(model_.model);
    const ModelSpec model = resolve(model_);
    validate(plan, model, plan_.string());
    const PredictionInputs inputs = prediction_inputs(cluster_, history_, constants_.constants);
    const Cluster& cluster = inputs.cluster;
    const DeviceMap map = DeviceMap::of_present(cluster);
    refuse_missing_devices(plan, plan_, cluster, map);
    const Setup setup{plan, model, cluster, map, software_named(software_), format_of(plan.precision)};
    const StepSimulator simulator(setup);
    const StepPrediction step = simulator.run(inputs.constants);
    if (!failures_.trace.empty()) return replay_plan(console, failures_, plan, step.seconds);
    std::string output = prediction_text(step, setup) +
                         fmt::format("constants: {}\n{}", constants_.origin, inputs.description);
    if (wants_timeline_) output += "\n" + draw_step(step, terminal_columns(130) - 9);
    if (!trace_.empty()) {
      RealFileSystem files;
      const std::vector<TracedInstruction> instructions =
          simulator.instructions(inputs.constants, kMaxTracedInstructions);
      value_or_throw(write_atomically(files, trace_, perfetto_text(step, instructions)));
      output += fmt::format("\nwrote the trace to {}; open it in ui.perfetto.dev\n", trace_.string());
    }
    OrderedJson json = prediction_json(step, setup);
    json["constants"] = constants_.origin;
    if (!history_.empty()) json["history"] = to_json(inputs.residuals);
    console.result(json, output);
    return 0;
  }

  // A measured run and the objects to which its prediction refers.
  struct MeasuredRun {
    ModelSpec model;
    Plan plan;
    DeviceMap map;
    std::optional<StepSimulator> simulator;
  };

  int refit_constants(Console& console) {
    if (cluster_.empty()) throw UsageError("--refit requires --cluster C, the machines of the runs");
    const Cluster cluster = open_cluster(cluster_);
    std::vector<std::unique_ptr<MeasuredRun>> runs;
    std::vector<MeasuredPlan> plans;
    int num_steps = 0;
    for (const std::string& folder : split(refit_, ',')) {
      MeasuredRun& run = *runs.emplace_back(std::make_unique<MeasuredRun>());
      const Path metrics = Path(folder) / "metrics.jsonl", plan = Path(folder) / "plan.json";
      const std::vector<double> seconds =
          step_seconds_of(read_input_file(metrics, kMaxMetricsBytes), metrics.string());
      run.plan = read_plan(plan);
      ModelOptions model = model_;
      if (model.model.empty()) model.model = folder;
      model.model = model_path_of(model.model);
      run.model = resolve(model);
      validate(run.plan, run.model, plan.string());
      run.map = DeviceMap::of_present(cluster);
      refuse_missing_devices(run.plan, plan, cluster, run.map);
      run.simulator.emplace(
          Setup{run.plan, run.model, cluster, run.map, optimus_software(), format_of(run.plan.precision)});
      num_steps += static_cast<int>(seconds.size());
      plans.push_back({folder, &*run.simulator, typical_seconds(seconds), static_cast<int>(seconds.size()),
                       num_devices(run.plan) > 1});
    }
    const Refit fitted = refit(plans, constants_.constants);
    const Path out = out_.empty() ? Path(split(refit_, ',').front()) / "constants.json" : out_;
    const NamedConstants named_constants{
        fitted.constants, fmt::format("{} steps of {} on {}", num_steps, refit_, cluster.name())};
    RealFileSystem files;
    value_or_throw(write_atomically(files, out, to_json(named_constants).dump(2) + "\n"));
    OrderedJson json = to_json(fitted);
    json["file"] = out.string();
    console.result(json,
                   text(fitted) + fmt::format("\nwrote the constants to {}; use them with --constants {}\n",
                                              out.string(), out.string()));
    return 0;
  }

  Path plan_, trace_, runs_, constants_file_, out_;
  std::string cluster_, software_, refit_, history_;
  FailureOptions failures_;
  NamedConstants constants_;
  ModelOptions model_;
  bool wants_timeline_ = false;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<Simulate>(); }

}  // namespace optimus
