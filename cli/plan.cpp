// optimus plan --model M --cluster C --batch B --seq S: finds the best plan and reports its cost and the
// alternatives. --diff A B: compares two plans. --import FILE: reads the launch configuration of another
// trainer as a plan, predicts its cost and looks for a better plan.
#include <chrono>

#include "base/text.h"
#include "checkpoint/open_model.h"
#include "cli/command.h"
#include "cli/plan_export.h"
#include "cli/software.h"
#include "cluster/open.h"
#include "cost/constants_json.h"
#include "model/options.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "search/report.h"
#include "search/sizing.h"
#include "simulate/report.h"

namespace optimus {
namespace {

class PlanCommand final : public Command {
 public:
  void declare(OptionTable& table) override {
    optimus::declare(table, model_);
    table.add("cluster", cluster_, "C",
              "h100x512, a100x16+v100x32, herex2 (this machine as measured, two workers), or a JSON file");
    table.add("batch", batch_, "B", "global batch size in sequences, over all devices");
    table.add("seq", sequence_length_, "S", "sequence length in tokens (default: the model's maximum)");
    table.add_word("precision", precision_, precision_words(), "precision of weights and activations");
    table.add("software", software_, "NAME", "trainer that will run the plan (default: optimus)");
    table.add("constants", constants_file_, "FILE", "cost model constants, as written by simulate --refit");
    table.add("history", history_, "FILE|here",
              "correct predictions with measurements from past runs: a file, or 'here' for the history of "
              "this machine");
    optimus::declare(table, constraints_);
    optimus::declare(table, failures_);
    table.add_choice("goal", goal_,
                     {{"throughput", Goal::throughput}, {"cost", Goal::cost}, {"energy", Goal::energy}},
                     "quantity to optimize");
    table.add("price", price_, "X", "price of a device per hour, in any currency");
    table.add("watts", watts_, "X", "power of a device in watts (default: that of its device type)");
    table.add("tokens", tokens_, "N",
              "length of the run in tokens, for example 15T; adds the run's duration, cost and energy to the "
              "output");
    table.add("days", days_, "D", "with --tokens: find the number of devices needed to finish in D days");
    table.add("timeline", wants_timeline_, "draw the stages over time");
    table.add("svg", svg_, "FILE", "draw the plan as SVG: devices, layers, memory and time");
    optimus::declare(table, import_);
    optimus::declare(table, export_);
    table.add("diff", diff_, "A B", "list the differences between plans A and B").values_per_occurrence = 2;
  }

  int run(Console& console) override {
    if (!diff_.empty()) return show_difference(console);
    if (!constants_file_.empty()) constants_ = read_constants(constants_file_).constants;
    if (!import_.file.empty()) return show_import(console);
    if (model_.model.empty() || cluster_.empty() || !batch_)
      throw UsageError(
          "{} missing: a plan needs --model M, --cluster C and --batch B; use --import FILE to read another "
          "trainer's launch, or --diff A B to compare two plans",
          missing_flags());
    return plan(console);
  }

 private:
  std::string missing_flags() const {
    std::vector<std::string> names;
    if (model_.model.empty()) names.emplace_back("--model");
    if (cluster_.empty()) names.emplace_back("--cluster");
    if (!batch_) names.emplace_back("--batch");
    return join(names, ", ") + (names.size() == 1 ? " is" : " are");
  }

  int show_difference(Console& console) {
    if (diff_.size() != 2) throw UsageError("--diff: expected two plan files, got {}", diff_.size());
    const Plan a = read_plan(diff_[0]), b = read_plan(diff_[1]);
    const std::vector<std::string> changes = difference(a, b);
    std::string output;
    for (const std::string& change : changes) output += change + "\n";
    console.result({{"from", plan_hash(a)}, {"to", plan_hash(b)}, {"changes", changes}},
                   output.empty() ? "the plans are equal\n" : output);
    return 0;
  }

  int show_import(Console& console) {
    const ImportedPlan imported = read_requested_import(import_, model_, batch_, sequence_length_);
    OrderedJson json = imported_json(imported);
    std::string output = imported_text(imported);
    if (!cluster_.empty()) compare_import(imported, json, output);
    output += export_if_requested(export_, imported.plan, imported.model, json);
    console.result(json, output);
    return 0;
  }

  // Predicts the cost of the imported plan on the cluster, and searches for a better plan on the same
  // cluster.
  void compare_import(const ImportedPlan& imported, OrderedJson& json, std::string& output) {
    check(constraints_);
    const PredictionInputs inputs = prediction_inputs(cluster_, history_, constants_);
    const Cluster& cluster = inputs.cluster;
    const DeviceMap map = DeviceMap::of_present(cluster);
    if (num_devices(imported.plan) > map.size())
      throw UserError("{}: the plan is for {} devices, but {} has only {}", import_.file.string(),
                      num_devices(imported.plan), cluster.name(), map.size());
    const Setup setup{imported.plan,
                      imported.model,
                      cluster,
                      map,
                      software_named(software_),
                      format_of(imported.plan.precision)};
    const StepPrediction step = StepSimulator(setup).run(inputs.constants);
    json["predicted"] = prediction_json(step, setup);
    output += "\n" + prediction_text(step, setup) + inputs.description;
    Demand demand{imported.model, cluster, software_named(software_), inputs.constants};
    demand.batch = imported.plan.batch, demand.sequence_length = imported.plan.sequence_length;
    demand.precision = imported.plan.precision, demand.constraints = constraints_;
    const ClusterView cluster_view(cluster);
    const SearchResult better = search(demand, cluster_view);
    const double ratio = step.seconds / better.step.seconds;
    json["better"] = {
        {"plan", to_json(better.plan)}, {"step_seconds", better.step.seconds}, {"speedup", ratio}};
    output += ratio > 1 ? fmt::format("\nbetter plan: {} takes {} per step, {:.2f} times as fast\n",
                                      short_text(better.plan), text(Seconds(better.step.seconds)), ratio)
                        : "\nthe planner found no better plan for this cluster\n";
  }

  void check_numbers() const {
    if (*batch_ < 1) throw UsageError("--batch: expected at least 1, got {}", *batch_);
    if (*batch_ > kMaxMicrobatches)
      throw UsageError("--batch: {} is more than {}", *batch_, kMaxMicrobatches);
    if (sequence_length_ && *sequence_length_ < 1)
      throw UsageError("--seq: expected at least 1, got {}", *sequence_length_);
    if (days_ && !tokens_) throw UsageError("--days requires --tokens, the length of the run");
    if (days_ && !(*days_ > 0)) throw UsageError("--days: expected more than 0, got {}", *days_);
    if (tokens_ && *tokens_ < 1) throw UsageError("--tokens: expected at least 1, got {}", *tokens_);
    for (const auto& [name, value] : {std::pair{"price", price_}, {"watts", watts_}})
      if (value && !(*value >= 0)) throw UsageError("--{}: expected at least 0, got {}", name, *value);
  }

  int plan(Console& console) {
    check_numbers();
    check(constraints_);
    const auto begin_time = std::chrono::steady_clock::now();
    model_.model = model_path_of(model_.model);
    const ModelSpec model = resolve(model_);
    const PredictionInputs inputs = prediction_inputs(cluster_, history_, constants_);
    const Cluster& cluster = inputs.cluster;
    Demand demand{model, cluster, software_named(software_), inputs.constants};
    demand.batch = *batch_, demand.sequence_length = sequence_length_.value_or(model.max_positions);
    demand.precision = parse_precision(precision_, "--precision");
    demand.constraints = constraints_, demand.goal = goal_, demand.price = price_, demand.watts = watts_;
    demand.failures = failures_;
    const ClusterView cluster_view(cluster);
    SearchLimits limits;
    limits.is_uniform = !export_.trainer.empty() && export_.trainer != "optimus";
    const SearchResult result = search(demand, cluster_view, limits);
    const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin_time;

    OrderedJson json = search_json(demand, cluster_view, result);
    json["search"]["seconds"] = duration.count();
    std::string output = search_text(demand, cluster_view, result) + inputs.description;
    if (!history_.empty()) json["history"] = to_json(inputs.residuals);
    if (wants_timeline_) output += "\n" + draw_step(result.step, terminal_columns(130) - 9);
    if (tokens_) add_run(demand, cluster_view, result, json, output);
    if (!svg_.empty()) {
      RealFileSystem files;
      value_or_throw(write_atomically(files, svg_, search_svg(demand, cluster_view, result)));
      output += fmt::format("\nwrote the drawing to {}\n", svg_.string());
    }
    const int devices_per_node = cluster.num_devices() / std::max(1, cluster.num_nodes());
    if (const std::string export_text =
            export_if_requested(export_, result.plan, model, json, devices_per_node);
        !export_text.empty())
      output += "\n" + export_text;
    console.result(json, output);
    return 0;
  }

  void add_run(const Demand& demand, const ClusterView& cluster_view, const SearchResult& result,
               OrderedJson& json, std::string& output) const {
    const auto tokens = static_cast<double>(*tokens_);
    const RunEstimate estimate = estimate_run(demand, cluster_view, result, tokens);
    json["run"] = estimate_json(estimate);
    output += "\n" + estimate_text(estimate);
    if (!days_) return;
    const Sizing sizing = devices_to_finish(demand, *days_ * 86400 / estimate.steps);
    const std::string type = demand.cluster.profile().types.front().name;
    json["run"]["days_wanted"] = *days_;
    json["run"]["devices_needed"] = sizing.num_devices > 0 ? OrderedJson(sizing.num_devices) : OrderedJson();
    output +=
        sizing.num_devices > 0
            ? fmt::format("finishing in {:.4g} days needs {} {} ({:.1f} days)\n", *days_,
                          with_commas(sizing.num_devices), type, sizing.seconds * estimate.steps / 86400)
            : fmt::format(
                  "however many {} are used, the run takes longer than {:.4g} days with a batch of {}; {} "
                  "devices take {:.1f} days\n",
                  type, *days_, demand.batch, with_commas(sizing.fastest_num_devices),
                  sizing.min_seconds * estimate.steps / 86400);
  }

  ModelOptions model_;
  std::string cluster_, software_, history_, precision_ = "bf16";
  std::optional<std::int64_t> batch_, sequence_length_, tokens_;
  std::optional<double> price_, watts_, days_;
  Constraints constraints_;
  Failures failures_;
  Goal goal_ = Goal::throughput;
  bool wants_timeline_ = false;
  Path svg_, constants_file_;
  Constants constants_ = fitted_constants();
  std::vector<std::string> diff_;
  PlanImportOptions import_;
  PlanExportOptions export_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace optimus
