// optimus learn: trains the policy that decides on plan changes, in simulated runs
// (docs/understand/learned-policy.md).
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/failure_speeds.h"
#include "cost/constants_json.h"
#include "cost/history_json.h"
#include "rundir/run_records.h"
#include "trials/learning.h"

namespace optimus {
namespace {

// The first part of each trace is used for training, the remaining part for evaluation.
constexpr double kTrainingFraction = 0.6;

class Learn final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add("out", out_, "FILE", "output file for the policy (safetensors)").is_required = true;
    table.add("start", start_, "FILE", "policy from which to continue; 'shipped' is the built-in policy");
    table.add("failures", traces_, "TRACE[,TRACE…]",
              "availability traces of your machines; the first 60 % of each is used, in addition to "
              "generated traces");
    table.add("history", history_, "RUN[,RUN…]",
              "prediction errors on your machines: folders of runs that changed their plans, a history file, "
              "or here (this machine's history file)");
    table.add("cluster", cluster_, "C", "your cluster; requires --model, --batch and --failures");
    optimus::declare(table, model_);
    table.add("batch", speeds_.batch, "B", "global batch size in sequences");
    table.add("seq", speeds_.sequence_length, "S", "sequence length in tokens");
    table.add("devices-per-node", speeds_.devices_per_node, "N", "number of devices per node in the traces");
    table.add("seed", seed_, "S", "random seed; other seeds give different policies of similar quality");
    table.add("minutes", options_.minutes, "M", "training time in minutes, on two idle cores");
    table.add("threads", options_.threads, "N", "number of threads (does not change the result)");
    table.add_word(kWithout, ablation_, {"nothing", "imitation", "reinforcement", kResidual},
                   "part of the training to leave out; residual: the prediction errors seen so far");
    table.add(
        "curve", curve_, "FILE",
        "output file for the learning curve (default: the policy file's name with .curve.csv appended)");
  }

  int run(Console& console) override {
    check();
    options_.seed = static_cast<std::uint64_t>(seed_);
    if (!traces_.empty()) read_traces();
    if (!history_.empty()) read_history_errors();
    LearnedPolicy start;
    if (!start_.empty()) start = start_ == "shipped" ? shipped_policy() : read_learned_policy(start_);
    if (!start_.empty()) options_.start = &start;
    options_.imitates = ablation_ != "imitation", options_.reinforces = ablation_ != "reinforcement";
    options_.uses_prediction_errors = ablation_ != kResidual;
    std::vector<LearningPoint> points;
    LearnedPolicy learned = learn(options_, [&](const LearningPoint& point) {
      points.push_back(point);
      console.check_interrupted();
      console.line().print(line_of(point));
    });
    learned.origin = origin();
    write_learned_policy(learned, out_);
    const Path curve = curve_.empty() ? Path(out_.string() + ".curve.csv") : curve_;
    RealFileSystem files;
    value_or_throw(write_atomically(files, curve, curve_of(points)));
    const LearningPoint& best = *std::max_element(
        points.begin(), points.end(), [](const auto& a, const auto& b) { return a.fraction < b.fraction; });
    console.result(
        {{"file", out_.string()},
         {"curve", curve.string()},
         {"fraction_of_oracle", best.fraction},
         {"rounds", points.size() - 1}},
        fmt::format(
            "{}: {} of the oracle's useful steps on held-out scenarios; the learning curve is in {}\n",
            out_.string(), percent(best.fraction), curve.string()));
    return 0;
  }

 private:
  void check() const {
    if (!(options_.minutes >= 0.01 && options_.minutes <= 1000))
      throw UsageError("--minutes: expected 0.01 to 1,000, got {}", options_.minutes);
    if (options_.threads < 1 || options_.threads > 1024)
      throw UsageError("--threads: expected 1 to 1,024, got {}", options_.threads);
    if (seed_ < 0 || seed_ >= (std::int64_t{1} << 31))
      throw UsageError("--seed: expected 0 to 2^31, got {}", seed_);
    if (!cluster_.empty() && (model_.model.empty() || !speeds_.batch || traces_.empty()))
      throw UsageError("--cluster requires --model M, --batch B and --failures TRACE");
  }

  void read_traces() {
    for (const std::string& name : split(traces_, ',')) {
      const AvailabilityTrace full_trace = parse_trace(read_input_file(name, kMaxTraceBytes), name);
      if (!(full_trace.length > 0)) throw UserError("{}: the trace has no events", name);
      if (!cluster_.empty()) {
        const ReplaySpeeds speeds =
            speeds_from_templates(speeds_, model_, cluster_, builtin_constants().constants, full_trace);
        options_.environment.throughputs.push_back(speeds.throughput);
        options_.environment.batch = speeds.batch;
      }
      options_.environment.traces.push_back(piece_of(full_trace, 0, kTrainingFraction * full_trace.length));
    }
  }

  static void add_decisions(const std::string& run, std::vector<double>& prediction_errors) {
    for (const Decision& decision : read_decisions(run))
      if (decision.predicted_gain && decision.measured_gain && *decision.predicted_gain > -1 &&
          *decision.measured_gain > -1)
        prediction_errors.push_back(std::log((1 + *decision.predicted_gain) / (1 + *decision.measured_gain)));
  }

  // An error factor that all runs share affects every plan's prediction equally and cancels out in gains, so
  // only deviations from the mean matter.
  static void add_runs(const std::string& file, std::vector<double>& prediction_errors) {
    const History history = optimus::read_history(file);
    const std::vector<Residual> run_residuals = residuals(history);
    for (const PastRun& run : history.runs)
      for (const Evidence& evidence : run.evidence)
        if (evidence.kind == ResidualKind::layers)
          prediction_errors.push_back(
              std::log(factor_of(run_residuals, evidence.kind, evidence.device_type)) - evidence.log_factor);
  }

  void read_history_errors() {
    std::vector<double> prediction_errors;
    for (const std::string& name : split(history_, ','))
      if (name == "here" || ends_with(name, ".json"))
        add_runs(name, prediction_errors);
      else
        add_decisions(name, prediction_errors);
    if (prediction_errors.empty())
      throw UserError("--history: no decision has both a predicted and a measured gain");
    double mean = 0, squares = 0;
    for (const double error : prediction_errors) mean += error, squares += error * error;
    const double count = static_cast<double>(prediction_errors.size());
    mean /= count;
    // Adds two samples with the usual error of 5 % as a prior, because a few decisions say little about the
    // spread.
    constexpr double kUsualError = 0.05;
    options_.environment.mean_prediction_error = mean * count / (count + 2);
    options_.environment.prediction_error_spread = std::sqrt(
        (std::max(0.0, squares - count * mean * mean) + 2 * kUsualError * kUsualError) / (count + 2));
  }

  std::map<std::string, std::string> origin() const {
    return {{"seed", std::to_string(seed_)},
            {"minutes", fmt::format("{}", options_.minutes)},
            {kWithout, ablation_},
            {"start", start_},
            {"failures", traces_},
            {"history", history_},
            {"cluster", cluster_}};
  }

  static std::string line_of(const LearningPoint& point) {
    std::string line =
        fmt::format("{:<13} {:>3}: {:.2f} % of the oracle;", point.part, point.round, 100 * point.fraction);
    for (std::size_t f = 0; f < kTrialFamilies.size(); ++f)
      line += fmt::format(" {} {:.2f} ({:+.2f})", text(kTrialFamilies[f]), 100 * point.by_family[f],
                          100 * (point.by_family[f] - point.rule_by_family[f]));
    return line;
  }

  static std::string curve_of(const std::vector<LearningPoint>& points) {
    std::string content = "part,round,regret,fraction";
    for (const TrialFamily family : kTrialFamilies)
      content += fmt::format(",{},best_rule_{}", text(family), text(family));
    for (const LearningPoint& point : points) {
      content += fmt::format("\n{},{},{:.6f},{:.6f}", point.part, point.round, point.regret, point.fraction);
      for (std::size_t f = 0; f < kTrialFamilies.size(); ++f)
        content += fmt::format(",{:.6f},{:.6f}", point.by_family[f], point.rule_by_family[f]);
    }
    return content + "\n";
  }

  Path out_, curve_;
  std::int64_t seed_ = 1;
  std::string start_, traces_, history_, cluster_, ablation_ = "nothing";
  ModelOptions model_;
  FailureOptions speeds_;
  LearningOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_learn_command() { return std::make_unique<Learn>(); }

}  // namespace optimus
