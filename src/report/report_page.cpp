// Implements report_page.h. The sections of the page are, in this order: key figures, loss, speed, decisions,
// plan epochs, and the timeline of one step.
#include "report/report_page.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "observe/chart.h"
#include "observe/html.h"
#include "observe/metrics_read.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxRows = 1000;

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #f9f9f7; --card: #ffffff; --ink: #16150f; --soft: #52514e;
  --edge: #e1e0d9;
  --line: #2a78d6; --mark: #b3470f; --dot: #157a52; --band0: #f1f0ea; --band1: #e3ebf5;
  --forward: #2a78d6; --backward: #b3470f; --other: #8a8880; --talk: #157a52; }
@media (prefers-color-scheme: dark) { :root { --page: #0d0d0d; --card: #1a1a19; --ink: #f4f3ee;
  --soft: #c3c2b7; --edge: #3a3a37;
  --line: #5b9df0; --mark: #f0935c; --dot: #4cc38a; --band0: #232321; --band1: #1d2938;
  --forward: #5b9df0; --backward: #f0935c; --other: #8f8d85; --talk: #4cc38a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 22px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 8px; }
.soft { color: var(--soft); margin: 0 0 16px; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 14px 16px;
  margin-top: 16px; }
.wide { overflow-x: auto; } .wide svg { display: block; width: 100%; min-width: 640px; height: auto; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0; }
.facts dt { color: var(--soft); font-size: 13px; } .facts dd { margin: 0; font-size: 19px;
  overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right;
  white-space: nowrap; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
table.long { min-width: 920px; } td.why { min-width: 220px; overflow-wrap: anywhere; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } .end { text-anchor: end; }
  .middle { text-anchor: middle; }
.name { paint-order: stroke; stroke: var(--card); stroke-width: 3px; stroke-opacity: .8; }
.grid { stroke: var(--edge); } .axis { stroke: var(--soft); } .line { stroke: var(--line);
  stroke-width: 1.8; fill: none; stroke-linejoin: round; }
.range { stroke: var(--line); stroke-opacity: .28; stroke-width: 1.6; fill: none; }
  .dot { fill: var(--dot); stroke: var(--card); }
.band0 { fill: var(--band0); } .band1 { fill: var(--band1); }
.mark path { stroke: var(--mark); stroke-dasharray: 4 3; fill: none; } .mark .head { fill: var(--mark);
  stroke: none; }
.forward { fill: var(--forward); } .backward { fill: var(--backward); } .other { fill: var(--other); }
  .talk { fill: var(--talk); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 14px;
  vertical-align: -1px; }
.key.forward { background: var(--forward); } .key.backward { background: var(--backward); }
  .key.other { background: var(--other); }
.key.talk { background: var(--talk); }
)";

double median_of(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return NAN;
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// A range of consecutive steps with the same plan.
struct Epoch {
  std::int64_t number = 0, first = 0, last = 0;
  std::string plan;
  double tokens_per_second = 0;
};

std::vector<Epoch> epochs_of(const RunReport& report) {
  std::vector<Epoch> epochs;
  std::vector<double> speeds;
  const auto finish_epoch = [&] {
    if (!epochs.empty()) epochs.back().tokens_per_second = median_of(std::exchange(speeds, {}));
  };
  for (const StepMetrics& step : report.steps) {
    if (epochs.empty() || epochs.back().number != step.epoch) {
      finish_epoch();
      const auto plan = std::find_if(report.plans.begin(), report.plans.end(),
                                     [&](const RunPlan& run_plan) { return run_plan.epoch == step.epoch; });
      epochs.push_back({step.epoch, step.step, step.step,
                        plan == report.plans.end() ? fmt::format("epoch {}", step.epoch) : plan->name});
    }
    epochs.back().last = step.step;
    speeds.push_back(step.tokens_per_second);
  }
  finish_epoch();
  return epochs;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "–";
  return std::abs(value) >= 1000 && std::abs(value) < 1e18 ? short_count(value)
                                                           : fmt::format("{:.5g}", value);
}

std::string gain_or_dash(const std::optional<double>& gain) { return gain ? gain_text(*gain) : "–"; }

std::string facts_of(const RunReport& report, const std::vector<Epoch>& epochs) {
  std::string summary_html = "<dl class=\"facts\">";
  const auto fact = [&](const char* name, const std::string& value) {
    summary_html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, html_escaped(value));
  };
  if (!report.steps.empty()) {
    const StepMetrics& last = report.steps.back();
    fact("step", with_commas(last.step));
    fact("loss", number_text(last.loss));
    double seconds = 0;
    for (const StepMetrics& step : report.steps)
      if (step.seconds.value > 0 && step.seconds.value < 1e15) seconds += step.seconds.value;
    fact("total step time", text(Seconds(seconds)));
    fact("tokens/s in this plan epoch", number_text(epochs.back().tokens_per_second));
    fact("current plan", epochs.back().plan);
  }
  fact("decisions", fmt::format("{}", report.decisions.size()));
  return summary_html + "</dl>";
}

std::string charts_of(const RunReport& report, const std::vector<Epoch>& epochs) {
  Chart loss{.title = "loss"}, speed{.title = "tokens/s", .begins_at_zero = true};
  for (const StepMetrics& step : report.steps) {
    const auto step_number = static_cast<double>(step.step);
    loss.line.push_back({step_number, step.loss}),
        speed.line.push_back({step_number, step.tokens_per_second});
    if (step.validation_loss) loss.dots.push_back({step_number, *step.validation_loss});
  }
  for (const Epoch& epoch : epochs)
    speed.bands.push_back({static_cast<double>(epoch.first), static_cast<double>(epoch.last), epoch.plan});
  for (std::size_t i = 0; i < report.decisions.size(); ++i) {
    const Decision& decision = report.decisions[i];
    speed.marks.push_back({static_cast<double>(decision.step), fmt::format("{}", i + 1), text(decision)});
  }
  loss.bands = speed.bands, loss.marks = speed.marks;
  return fmt::format(
      "<section><h2>Loss{}</h2><div class=\"wide\">{}</div></section>\n"
      "<section><h2>Tokens per second</h2><div class=\"wide\">{}</div></section>\n",
      loss.dots.empty() ? "" : ", dots: validation loss", svg_of(loss), svg_of(speed));
}

std::string decisions_of(const RunReport& report) {
  if (report.decisions.empty()) return "<section><h2>Decisions</h2><p>None.</p></section>\n";
  std::string rows;
  for (std::size_t i = 0; i < std::min(kMaxRows, report.decisions.size()); ++i) {
    const Decision& decision = report.decisions[i];
    std::string alternatives_text;
    for (const PlanAlternative& plan : decision.alternatives)
      alternatives_text += fmt::format("{}{} {}", alternatives_text.empty() ? "" : "; ", plan.plan,
                                       gain_or_dash(plan.predicted_gain));
    rows += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"why\">{}</td><td>{} → "
        "{}</td>"
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td>{}</td></tr>\n",
        i + 1, with_commas(decision.step), html_escaped(decision.kind), html_escaped(decision.evidence),
        html_escaped(name_of(report.plans, decision.from)), html_escaped(name_of(report.plans, decision.to)),
        gain_or_dash(decision.predicted_gain), gain_or_dash(decision.measured_gain), text(decision.pause),
        text(decision.moved), html_escaped(alternatives_text));
  }
  const std::size_t remaining = report.decisions.size() - std::min(kMaxRows, report.decisions.size());
  return fmt::format(
      "<section><h2>Decisions</h2><div class=\"wide\"><table class=\"long\"><tr><th class=\"n\">mark</th><th "
      "class=\"n\">step</th><th>kind</th><th>reason</th><th>plan</th><th class=\"n\">predicted</th><th "
      "class=\"n\">measured</th><th class=\"n\">paused</th><th "
      "class=\"n\">moved</th><th>alternatives</th></tr>\n"
      "{}</table></div>{}</section>\n",
      rows, remaining == 0 ? "" : fmt::format("<p>and {} more</p>", remaining));
}

std::string epochs_table(const std::vector<Epoch>& epochs) {
  std::string rows;
  for (std::size_t i = 0; i < std::min(kMaxRows, epochs.size()); ++i)
    rows += fmt::format(
        "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{} to {}</td><td class=\"n\">{}</td></tr>\n",
        epochs[i].number, html_escaped(epochs[i].plan), with_commas(epochs[i].first),
        with_commas(epochs[i].last), number_text(epochs[i].tokens_per_second));
  return fmt::format(
      "<section><h2>Plan epochs</h2><div class=\"wide\"><table><tr><th "
      "class=\"n\">epoch</th><th>plan</th><th "
      "class=\"n\">steps</th><th class=\"n\">tokens/s, median</th></tr>\n{}</table></div></section>\n",
      rows);
}

}  // namespace

RunReport read_report(const Path& run) {
  check_run(run);
  RunReport report{.name = run.string(), .decisions = read_decisions(run), .plans = read_run_plans(run)};
  const Path metrics = run / "metrics.jsonl";
  std::error_code error;
  if (std::filesystem::exists(metrics, error))
    report.steps = parse_metrics(value_or_throw(read_file(metrics)), metrics.string());
  constexpr int kMaxRanks = 64;  // more rows would not be legible
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const Path file = run / "profile" / fmt::format("rank-{}.json", rank);
    if (!std::filesystem::exists(file, error)) break;
    report.ranks.push_back(parse_rank_profile(read_json(file), file.string()));
  }
  return report;
}

std::string report_page(const RunReport& report) {
  const std::vector<Epoch> epochs = epochs_of(report);
  const std::string name = html_escaped(report.name);
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
      "<style>{}</style></head><body><main>\n<h1>{}</h1>\n"
      "<p class=\"soft\">Bands are plans, and marks are decisions. Hover over them for details.</p>\n{}\n",
      name, kStyle, name, facts_of(report, epochs));
  page += charts_of(report, epochs) + decisions_of(report);
  if (!epochs.empty()) page += epochs_table(epochs);
  if (!report.ranks.empty())
    page += fmt::format(
        "<section><h2>Timeline of one step<span class=\"key forward\"></span>forward<span class=\"key "
        "backward\"></span>backward<span class=\"key other\"></span>other work<span class=\"key "
        "talk\"></span>communication</h2><div class=\"wide\">{}</div></section>\n",
        timeline_svg(report.ranks));
  return page + "</main></body></html>\n";
}

}  // namespace optimus
