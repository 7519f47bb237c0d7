// See accuracy.h.
#include "simulate/accuracy.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/text.h"

namespace optimus {
namespace {

constexpr std::size_t kMinSweepRows = 4;  // minimum number of rows in a sweep for evaluating their order
// Measurements with a smaller relative difference may be in either order.
constexpr double kMinRelativeDifference = 0.05;

void add(ErrorSummary& summary, double error) {
  summary.mape += std::abs(error);
  summary.worst = std::max(summary.worst, std::abs(error));
  ++summary.rows;
}
void finish(ErrorSummary& summary) {
  if (summary.rows > 0) summary.mape /= summary.rows;
}

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> result(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) result[order[k]] = static_cast<double>(i + end - 1) / 2;
    i = end;
  }
  return result;
}

// Spearman's rank correlation.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double mean = static_cast<double>(x.size() - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean), yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 1;
}

// Compares seconds per sequence, because the batch sizes within a sweep may differ by 3 %.
void judge_sweeps(std::span<const RunOutcome> outcomes, AccuracySummary& summary) {
  std::map<std::string, std::vector<const RunOutcome*>> sweeps;
  for (const RunOutcome& outcome : outcomes)
    if (outcome.run->is_judged() && !outcome.run->measured.sweep.empty())
      sweeps[outcome.run->measured.sweep].push_back(&outcome);
  std::vector<double> correlations;
  int num_correct = 0;
  for (const auto& [name, rows] : sweeps) {
    if (rows.size() < kMinSweepRows) continue;
    std::vector<double> measured, predicted;
    for (const RunOutcome* row : rows) {
      const auto batch = static_cast<double>(row->run->run->plan.batch);
      measured.push_back(row->run->measured.seconds / batch), predicted.push_back(row->seconds / batch);
    }
    correlations.push_back(rank_correlation(measured, predicted));
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t k = i + 1; k < rows.size(); ++k) {
        if (std::abs(measured[i] - measured[k]) <=
            kMinRelativeDifference * std::min(measured[i], measured[k]))
          continue;
        ++summary.pairs;
        num_correct += (measured[i] < measured[k]) == (predicted[i] < predicted[k]);
      }
  }
  summary.sweeps = static_cast<int>(correlations.size());
  if (summary.pairs > 0) summary.pairs_ordered = static_cast<double>(num_correct) / summary.pairs;
  if (correlations.empty()) return;
  std::sort(correlations.begin(), correlations.end());
  const std::size_t middle = correlations.size() / 2;
  summary.rank_correlation = correlations.size() % 2 == 1
                                 ? correlations[middle]
                                 : (correlations[middle - 1] + correlations[middle]) / 2;
}

}  // namespace

double RunOutcome::error() const { return seconds / run->measured.seconds - 1; }
double RunOutcome::memory_error() const { return bytes ? *bytes / *run->measured.bytes - 1 : 0; }

std::vector<RunOutcome> predict_runs(std::span<const Run> runs, const Constants& constants) {
  std::vector<RunOutcome> outcomes;
  for (const Run& run : runs)
    if (run.run) outcomes.push_back({&run, 0, 0, std::nullopt});
  for (RunOutcome& outcome : outcomes) {
    const RunCase& run_case = *outcome.run->run;
    const MeasuredRun& measured = outcome.run->measured;
    outcome.seconds = run_case.simulator->seconds(constants);
    outcome.seconds_left_out = run_case.simulator->seconds(constants_fitted_without(measured.source));
    if (measured.bytes)
      outcome.bytes = static_cast<double>(run_case.memory(measured.memory_kind, constants).value);
  }
  return outcomes;
}

AccuracySummary summarise(std::span<const Run> runs, std::span<const RunOutcome> outcomes) {
  AccuracySummary summary;
  for (const Run& run : runs) {
    summary.skipped += !run.is_judged();
    summary.mixtures += run.measured.is_mixture;
  }
  for (const RunOutcome& outcome : outcomes) {
    if (!outcome.run->is_judged()) {
      add(summary.mixture_time, outcome.error());
      if (outcome.bytes) add(summary.mixture_memory, outcome.memory_error());
      continue;
    }
    add(summary.step_time, outcome.error());
    add(summary.left_out_source, outcome.seconds_left_out / outcome.run->measured.seconds - 1);
    if (outcome.bytes) add(summary.memory, outcome.memory_error());
  }
  for (ErrorSummary* errors : {&summary.step_time, &summary.left_out_source, &summary.memory,
                               &summary.mixture_time, &summary.mixture_memory})
    finish(*errors);
  judge_sweeps(outcomes, summary);
  return summary;
}

namespace {

struct GroupErrors {
  ErrorSummary time, left_out, memory;
  double bias = 0;
};

using ByName = std::map<std::string, GroupErrors>;

ByName errors_by_name(std::span<const RunOutcome> outcomes, bool by_software) {
  ByName groups;
  for (const RunOutcome& outcome : outcomes) {
    const MeasuredRun& measured = outcome.run->measured;
    if (!outcome.run->is_judged()) continue;
    GroupErrors& group = groups[by_software ? measured.software : measured.source];
    add(group.time, outcome.error());
    group.bias += outcome.error();
    add(group.left_out, outcome.seconds_left_out / measured.seconds - 1);
    if (outcome.bytes) add(group.memory, outcome.memory_error());
  }
  for (auto& [name, group] : groups) {
    group.bias /= group.time.rows;
    for (ErrorSummary* errors : {&group.time, &group.left_out, &group.memory}) finish(*errors);
  }
  return groups;
}

OrderedJson json_of(const ErrorSummary& errors) {
  return {{"mape", errors.mape}, {"worst", errors.worst}, {"rows", errors.rows}};
}

OrderedJson json_of(const ByName& groups) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [name, group] : groups)
    json[name] = {{"step_time", json_of(group.time)},
                  {"left_out_source", json_of(group.left_out)},
                  {"memory", json_of(group.memory)}};
  return json;
}

std::string table_of(const std::string& title, const ByName& groups) {
  TextTable table({title, "rows", "step time", "mean", "worst", "left out", "memory rows", "memory"});
  for (const auto& [name, group] : groups)
    table.row({name, std::to_string(group.time.rows), percent(group.time.mape),
               fmt::format("{:+.1f} %", group.bias * 100), percent(group.time.worst),
               percent(group.left_out.mape), std::to_string(group.memory.rows),
               group.memory.rows > 0 ? percent(group.memory.mape) : "-"});
  return table.text();
}

}  // namespace

OrderedJson accuracy_json(std::span<const Run> runs, std::span<const RunOutcome> outcomes) {
  const AccuracySummary summary = summarise(runs, outcomes);
  OrderedJson json;
  json["summary"] = {{"step_time", json_of(summary.step_time)},
                     {"memory", json_of(summary.memory)},
                     {"left_out_source", json_of(summary.left_out_source)},
                     {"rank_correlation", {{"median", summary.rank_correlation}, {"sweeps", summary.sweeps}}},
                     {"pairs_ordered", summary.pairs_ordered},
                     {"pairs", summary.pairs},
                     {"skipped", summary.skipped},
                     {"mixtures_of_experts",
                      {{"rows", summary.mixtures},
                       {"predicted", summary.mixture_time.rows},
                       {"mape", summary.mixture_time.mape},
                       {"worst", summary.mixture_time.worst},
                       {"memory", json_of(summary.mixture_memory)}}}};
  json["sources"] = json_of(errors_by_name(outcomes, false));
  json["software"] = json_of(errors_by_name(outcomes, true));
  std::map<const Run*, const RunOutcome*> outcome_of;
  for (const RunOutcome& outcome : outcomes) outcome_of[outcome.run] = &outcome;
  json["rows"] = OrderedJson::array();
  for (const Run& run : runs) {
    const MeasuredRun& m = run.measured;
    const auto at = outcome_of.find(&run);
    OrderedJson row = {{"id", m.id}, {"source", m.source}};
    row["measured_seconds"] = m.seconds > 0 ? OrderedJson(m.seconds) : OrderedJson();
    row["predicted_seconds"] = at == outcome_of.end() ? OrderedJson() : OrderedJson(at->second->seconds);
    row["predicted_seconds_left_out"] =
        at == outcome_of.end() ? OrderedJson() : OrderedJson(at->second->seconds_left_out);
    row["measured_bytes"] = m.bytes ? OrderedJson(*m.bytes) : OrderedJson();
    row["predicted_bytes"] =
        at != outcome_of.end() && at->second->bytes ? OrderedJson(*at->second->bytes) : OrderedJson();
    row["filled"] = m.filled_fields;
    row["skipped"] = m.skip_reason.empty() ? OrderedJson() : OrderedJson(m.skip_reason);
    row["software"] = m.software;
    row["sweep"] = m.sweep;
    json["rows"].push_back(std::move(row));
  }
  return json;
}

std::string accuracy_text(std::span<const Run> runs, std::span<const RunOutcome> outcomes) {
  const AccuracySummary s = summarise(runs, outcomes);
  TextTable rows({"run", "measured s", "predicted s", "error", "measured GB", "predicted GB", "error"});
  for (const RunOutcome& outcome : outcomes) {
    const MeasuredRun& m = outcome.run->measured;
    rows.row({m.id, fmt::format("{:.3f}", m.seconds), fmt::format("{:.3f}", outcome.seconds),
              fmt::format("{:+.1f} %", outcome.error() * 100),
              m.bytes ? fmt::format("{:.1f}", *m.bytes / 1e9) : "-",
              outcome.bytes ? fmt::format("{:.1f}", *outcome.bytes / 1e9) : "-",
              outcome.bytes ? fmt::format("{:+.1f} %", outcome.memory_error() * 100) : "-"});
  }
  std::map<std::string, int> reasons;
  for (const Run& run : runs)
    if (!run.is_judged()) ++reasons[run.measured.skip_reason];
  std::string text = rows.text() + "\n" + table_of("source", errors_by_name(outcomes, false)) + "\n" +
                     table_of("software", errors_by_name(outcomes, true)) + "\n";
  for (const auto& [reason, number] : reasons) text += fmt::format("skipped {:4}: {}\n", number, reason);
  if (s.mixtures > 0)
    text += fmt::format("\nMoE models (reported separately): {} mean error over {} of {} runs (worst {})\n",
                        percent(s.mixture_time.mape), s.mixture_time.rows, s.mixtures,
                        percent(s.mixture_time.worst));
  text += fmt::format(
      "\nstep time: {} mean error over {} runs (worst {}); {} if the run's source is excluded from the "
      "fit\nmemory: {} mean error over {} runs (worst {})\norder: {} of {} pairs in {} sweeps correct; "
      "median rank correlation {:.2f}\n",
      percent(s.step_time.mape), s.step_time.rows, percent(s.step_time.worst),
      percent(s.left_out_source.mape), percent(s.memory.mape), s.memory.rows, percent(s.memory.worst),
      percent(s.pairs_ordered), s.pairs, s.sweeps, s.rank_correlation);
  return text;
}

}  // namespace optimus
