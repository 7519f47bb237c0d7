// Fits the constants of the cost model to measured runs and writes them.
//   bench_fit RUNS.csv                  fits to all runs, prints errors by source
//   bench_fit RUNS.csv --also MORE.csv  also fits to every twelfth row of another, unreported table
//   bench_fit RUNS.csv --write FILE     also fits once without each source, and writes src/cost/fitted.inc
// Takes about a minute; with --write, one minute more per source.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "simulate/accuracy.h"
#include "simulate/fit.h"

using namespace optimus;

namespace {

std::vector<std::string> constants_of(bool is_memory) {
  std::vector<std::string> names;
  for (const ConstantRow& row : constant_rows())
    if (!row.is_stated && row.name.starts_with("memory.") == is_memory) names.emplace_back(row.name);
  return names;
}

// The weight of a source grows with its number of rows, but less than proportionally.
std::vector<double> weights_of(const std::vector<const Run*>& runs) {
  std::map<std::string, int> counts;
  for (const Run* run : runs) ++counts[run->measured.source];
  std::vector<double> weights;
  double sum = 0;
  for (const Run* run : runs) sum += weights.emplace_back(1 / std::pow(counts[run->measured.source], 0.3));
  for (double& weight : weights) weight *= static_cast<double>(runs.size()) / sum;
  return weights;
}

Constants fit_without(std::span<const Run> all, std::span<const Run> more, const std::string& source,
                      const Constants& start, int steps) {
  std::vector<const Run*> timed, runs_with_memory;
  for (const std::span<const Run> table : {all, more})
    for (const Run& run : table) {
      if (!run.run || run.measured.is_mixture || run.measured.source == source) continue;
      timed.push_back(&run);
      if (run.measured.bytes) runs_with_memory.push_back(&run);
    }
  FitProblem time{{}, weights_of(timed), {}, constants_of(false)};
  for (const Run* run : timed) time.measured.push_back(run->measured.seconds);
  time.predict = [&](std::size_t i, const Constants& c) { return timed[i]->run->simulator->seconds(c); };
  Constants constants = fit(time, start, {.steps = steps});
  FitProblem memory{{}, weights_of(runs_with_memory), {}, constants_of(true)};
  for (const Run* run : runs_with_memory) memory.measured.push_back(*run->measured.bytes);
  memory.predict = [&](std::size_t i, const Constants& c) {
    return static_cast<double>(
        runs_with_memory[i]->run->memory(runs_with_memory[i]->measured.memory_kind, c).value);
  };
  return fit(memory, constants, {.steps = 6});
}

std::string line_of(const std::string& source, const Constants& constants) {
  std::string line = fmt::format("{{\"{}\", {{", source);
  for (const ConstantRow& row : constant_rows())
    if (!row.is_stated) line += fmt::format("{:.4g}, ", constants.*row.member);
  line.resize(line.size() - 2);
  return line + "}},\n";
}

// Prints the mean error for other values of one constant.
void show_sensitivity(std::span<const Run> runs, const std::string& name, const Constants& constants) {
  for (const ConstantRow& row : constant_rows()) {
    if (row.name != name) continue;
    for (const double factor : {0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.4, 2.0}) {
      Constants other = constants;
      other.*row.member *= factor;
      const AccuracySummary summary = summarise(runs, predict_runs(runs, other));
      fmt::print("{} x {:4}: {:.2f} %, memory {:.2f} %\n", name, factor, summary.step_time.mape * 100,
                 summary.memory.mape * 100);
    }
  }
}

// Prints the time split of the runs whose id begins with `prefix`.
void show(std::span<const Run> runs, const std::string& prefix, const Constants& constants) {
  for (const Run& run : runs) {
    if (!run.run || !run.measured.id.starts_with(prefix)) continue;
    const StepPrediction step = run.run->simulator->run(constants);
    const auto line = [&](const std::string& name, const TimeSplit& s) {
      fmt::print(
          "{:24} compute {:8.3f} tensor {:7.3f} data {:7.3f} pipeline {:7.3f} bubble {:7.3f} optimizer "
          "{:6.3f} host {:6.3f}\n",
          name, s.compute, s.tensor, s.data, s.pipeline, s.bubble, s.optimizer, s.host);
    };
    fmt::print("{} measured {:.3f} predicted {:.3f}\n", run.measured.id, run.measured.seconds, step.seconds);
    line("mean", step.split);
    for (const StagePrediction& stage : step.stages)
      if (stage.stage < 2 || stage.stage + 2 >= std::ssize(step.stages))
        line(fmt::format("  stage {}", stage.stage), stage.split);
    const StageMemory& m = step.stages.front().memory;
    fmt::print(
        "  memory GB: weights {:.1f} gradients {:.1f} optimizer {:.1f} activations {:.1f} buffers {:.1f}\n",
        static_cast<double>(m.weights.value) / 1e9, static_cast<double>(m.gradients.value) / 1e9,
        static_cast<double>(m.optimizer.value) / 1e9, static_cast<double>(m.activations.value) / 1e9,
        static_cast<double>(m.buffers.value) / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw UserError("usage: bench_fit RUNS.csv [--write FILE] [--steps N]");
  int steps = 12;
  std::string target, shown, tried, also;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--write") == 0) target = argv[i + 1];
    if (std::strcmp(argv[i], "--also") == 0) also = argv[i + 1];
    if (std::strcmp(argv[i], "--try") == 0) tried = argv[i + 1];
    if (std::strcmp(argv[i], "--show") == 0) shown = argv[i + 1];
    if (std::strcmp(argv[i], "--steps") == 0) steps = std::atoi(argv[i + 1]);
  }
  const auto begin_time = std::chrono::steady_clock::now();
  const std::vector<Run> runs = read_runs(parse_csv(value_or_throw(read_file(argv[1])), argv[1]));
  std::vector<Run> more;
  if (!also.empty()) {
    CsvTable table = parse_csv(value_or_throw(read_file(also)), also);
    for (std::size_t i = 0; i * 12 + 5 < table.rows.size(); ++i) more.push_back(read_run(table, i * 12 + 5));
  }
  const auto since = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
  };
  fmt::print("read {} runs in {:.2f} s\n", runs.size(), since());
  const Constants found = fit_without(runs, more, "", fitted_constants(), steps);
  fmt::print("fitted in {:.1f} s\n", since());
  const Constants prior;
  for (const ConstantRow& row : constant_rows())
    fmt::print("{:20} {:10.4g}  prior {:8.4g}  {}\n", row.name, found.*row.member, prior.*row.member,
               row.meaning);
  const std::vector<RunOutcome> outcomes = predict_runs(runs, found);
  if (!more.empty())
    fmt::print("second table: {:.2f} % mean error\n",
               100 * summarise(more, predict_runs(more, found)).step_time.mape);
  if (!tried.empty()) show_sensitivity(runs, tried, found);
  if (!shown.empty()) show(runs, shown, found);
  fmt::print("{}", accuracy_text(runs, outcomes));
  if (target.empty()) return 0;
  std::map<std::string, int> sources;
  for (const Run& run : runs)
    if (run.run && !run.measured.is_mixture) ++sources[run.measured.source];
  std::string text =
      "// Written by bench_fit. One line for each set: the source left out (\"\": none), then values in the "
      "order of "
      "constants.cpp.\n" +
      line_of("", found);
  double sum = 0;
  int number = 0;
  for (const auto& [source, count] : sources) {
    const Constants without = fit_without(runs, more, source, prior, steps);
    text += line_of(source, without);
    double error = 0;
    for (const Run& run : runs)
      if (run.run && !run.measured.is_mixture && run.measured.source == source)
        error += std::abs(run.run->simulator->seconds(without) / run.measured.seconds - 1);
    sum += error, number += count;
    fmt::print("without {:10} {:5.1f} % over {} runs ({:.0f} s)\n", source, 100 * error / count, count,
               since());
    std::fflush(stdout);
  }
  fmt::print("cross-validation: {:.2f} % mean error\n", 100 * sum / number);
  RealFileSystem files;
  value_or_throw(write_atomically(files, target, text));
  return 0;
} catch (const ReportedError& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
