// Implements decisions.h.
#include "observe/decisions.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "observe/json_lines.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxAlternatives = 16;
constexpr std::size_t kMaxDecisionBytes = 64 << 10;  // as in metrics.cpp: a resumed run reads these lines
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53, kMaxLocation = 1 << 24;

OrderedJson or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

// Evidence may contain host names that are not valid UTF-8. Invalid bytes are replaced instead of throwing an
// exception.
std::string line_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson json_of(const std::vector<PlanAlternative>& plans) {
  OrderedJson list = OrderedJson::array();
  for (const PlanAlternative& plan : plans)
    list.push_back(
        {{"plan", plan.plan}, {"response", plan.response}, {"predicted_gain", or_null(plan.predicted_gain)}});
  return list;
}

OrderedJson json_of(const std::vector<RecordedFinding>& findings) {
  OrderedJson list = OrderedJson::array();
  for (const RecordedFinding& finding : findings)
    list.push_back({{"cause", finding.cause},
                    {"where", finding.locations},
                    {"factor", finding.factor},
                    {"since", finding.begin_step}});
  return list;
}

std::optional<double> number_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> member = view.find(name);
  return member ? std::optional(member->number()) : std::nullopt;
}

Bytes bytes_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> member = view.find(name);
  return Bytes(member ? member->integer(0) : 0);
}

Seconds seconds_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> member = view.find(name);
  if (!member) return {};
  const double value = member->number();
  if (!(value >= 0)) member->refuse("a non-negative number");
  return Seconds(value);
}

std::vector<RecordedFinding> findings_in(const JsonView& list) {
  std::vector<RecordedFinding> findings;
  for (const JsonView& view : list.elements()) {
    RecordedFinding finding{.cause = view.at("cause").text(), .factor = view.at("factor").number()};
    for (const JsonView& location : view.at("where").elements())
      finding.locations.push_back(static_cast<int>(location.integer(0, kMaxLocation)));
    finding.begin_step = view.at("since").integer(0, kMaxSteps);
    findings.push_back(std::move(finding));
  }
  return findings;
}

Decision decision_in(const JsonView& view) {
  Decision decision{.step = view.at("step").integer(0, kMaxSteps), .kind = view.at("kind").text()};
  decision.evidence = view.text_or("evidence", ""), decision.cause = view.text_or("cause", "");
  decision.from = view.text_or("from", ""), decision.to = view.text_or("to", "");
  decision.from_name = view.text_or("from_name", ""), decision.to_name = view.text_or("to_name", "");
  if (const auto epoch = view.find("epoch")) decision.epoch = epoch->integer(0, kMaxSteps);
  decision.predicted_gain = number_in(view, "predicted_gain");
  decision.measured_gain = number_in(view, "realised_gain");
  decision.pause = seconds_in(view, "pause_seconds"), decision.prepare = seconds_in(view, "prepare_seconds");
  decision.moved = bytes_in(view, "moved_bytes"), decision.minimum = bytes_in(view, "minimum_bytes");
  decision.early = bytes_in(view, "early_bytes"), decision.precopied = bytes_in(view, "precopied_bytes");
  decision.payback_steps = view.number_or("payback_steps", 0),
  decision.step_seconds = seconds_in(view, "step_seconds");
  if (const auto workers = view.find("workers"))
    decision.num_workers = static_cast<int>(workers->integer(0, 1 << 24));
  if (const auto lost = view.find("steps_lost")) decision.steps_lost = lost->integer(0, kMaxSteps);
  if (const auto findings = view.find("findings")) decision.findings = findings_in(*findings);
  if (const auto plans = view.find("alternatives"))
    for (const JsonView& plan : plans->elements())
      decision.alternatives.push_back(
          {plan.at("plan").text(), plan.text_or("response", ""), number_in(plan, "predicted_gain")});
  return decision;
}

// Assigns a measured gain to the latest switch to its epoch, because epoch numbers repeat if a run resumes
// from an older checkpoint. If there is no such switch, its line was dropped when the run resumed, and the
// gain is ignored.
void assign_measured_gain(const JsonView& view, std::vector<Decision>& decisions) {
  const std::int64_t epoch = view.at("epoch").integer(0, kMaxSteps);
  const std::optional<double> gain = number_in(view, "realised_gain");  // null if it was not finite
  for (auto it = decisions.rbegin(); it != decisions.rend(); ++it)
    if (it->kind == "switch" && it->epoch == epoch) {
      it->measured_gain = gain;
      return;
    }
}

// Replaces control characters, so that the content of a file cannot control the terminal.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

// Rounds up, so a fraction of a step becomes "1 step". Limits the number, because a file may contain any
// value.
std::string steps_text(double steps) {
  const double limited = std::isnan(steps) ? 1 : std::clamp(steps, 1.0, static_cast<double>(kMaxSteps));
  const auto count = static_cast<std::int64_t>(std::ceil(limited));
  return fmt::format("{} step{}", count, count == 1 ? "" : "s");
}

std::string name_of_plan(const std::string& name, const std::string& hash) {
  return name.empty() ? "plan " + hash.substr(0, 4) : name;
}

std::string pause_text(const Decision& decision) {
  std::string line = "paused " + text(decision.pause);
  if (decision.step_seconds.value > 0)
    line += fmt::format(" ({:.1f} steps)", decision.pause.value / decision.step_seconds.value);
  return line + fmt::format(", moved {} (minimum {})", text(decision.moved), text(decision.minimum));
}

std::string switch_text(const Decision& decision, const std::string& from, const std::string& to) {
  // The plans of two phases may differ only in the batch.
  std::string line = from == to ? "keeping layout " + from : fmt::format("switching {} → {}", from, to);
  if (decision.predicted_gain)
    line += fmt::format(" (expected {}, break-even after {})", gain_text(*decision.predicted_gain),
                        steps_text(decision.payback_steps));
  line += fmt::format("; plan {} → {}, prepared {}, {}", decision.from.substr(0, 4), decision.to.substr(0, 4),
                      text(decision.prepare), pause_text(decision));
  if (decision.early.value > 0)
    line += fmt::format(", pre-copied {} ({} sent again)", text(decision.early), text(decision.precopied));
  return line;
}

std::string membership_text(const Decision& decision, const std::string& from, const std::string& to) {
  const std::string workers =
      decision.num_workers > 0
          ? fmt::format(" with {} worker{}", decision.num_workers, decision.num_workers == 1 ? "" : "s")
          : "";
  const std::string lost =
      decision.steps_lost > 0 ? steps_text(static_cast<double>(decision.steps_lost)) : "no steps";
  return fmt::format("continuing{} on {} (was {}); {}, {} lost", workers, to, from, pause_text(decision),
                     lost);
}

// Describes the plan change that the run made.
std::string change_text(const Decision& decision) {
  const std::string from = name_of_plan(decision.from_name, decision.from);
  const std::string to = name_of_plan(decision.to_name, decision.to);
  if (decision.kind == "stay") return "keeping " + from;
  return decision.kind == "switch" ? switch_text(decision, from, to) : membership_text(decision, from, to);
}

}  // namespace

OrderedJson to_json(const Decision& decision) {
  return {{"step", decision.step},
          {"kind", decision.kind},
          {"evidence", decision.evidence},
          {"cause", decision.cause.empty() ? OrderedJson() : OrderedJson(decision.cause)},
          {"findings", json_of(decision.findings)},
          {"from", decision.from},
          {"to", decision.to},
          {"from_name", decision.from_name},
          {"to_name", decision.to_name},
          {"epoch", decision.epoch},
          {"predicted_gain", or_null(decision.predicted_gain)},
          {"realised_gain", or_null(decision.measured_gain)},
          {"pause_seconds", decision.pause.value},
          {"prepare_seconds", decision.prepare.value},
          {"moved_bytes", decision.moved.value},
          {"minimum_bytes", decision.minimum.value},
          {"early_bytes", decision.early.value},
          {"precopied_bytes", decision.precopied.value},
          {"payback_steps", decision.payback_steps},
          {"step_seconds", decision.step_seconds.value},
          {"workers", decision.num_workers > 0 ? OrderedJson(decision.num_workers) : OrderedJson()},
          {"steps_lost", decision.steps_lost},
          {"alternatives", json_of(decision.alternatives)}};
}

std::string decision_line(const Decision& decision) {
  if (decision.alternatives.size() <= kMaxAlternatives) return line_of(to_json(decision));
  Decision shorter = decision;
  shorter.alternatives.resize(kMaxAlternatives);
  return line_of(to_json(shorter));
}

std::string decision_line(const MeasuredGain& measured) {
  return line_of({{"step", measured.step},
                  {"kind", "realised"},
                  {"epoch", measured.epoch},
                  {"realised_gain", measured.gain}});
}

std::vector<Decision> parse_decisions(std::string_view content, const std::string& source) {
  std::vector<Decision> decisions;
  for_each_json_line(content, source, "a decision", kMaxDecisionBytes, [&](const JsonView& line) {
    if (line.at("kind").text() == "realised")
      assign_measured_gain(line, decisions);
    else
      decisions.push_back(decision_in(line));
  });
  return decisions;
}

std::string gain_text(double gain) { return fmt::format("{:+.0f} %", gain * 100); }

std::string text(const Decision& decision) {
  const std::string evidence = decision.evidence.empty() ? "" : decision.evidence + "; ";
  std::string line = fmt::format("step {}: {}{}", decision.step, evidence, change_text(decision));
  if (decision.measured_gain) line += "; measured " + gain_text(*decision.measured_gain);
  for (std::size_t i = 0; i < decision.alternatives.size(); ++i) {
    const PlanAlternative& alternative = decision.alternatives[i];
    line += (i == 0 ? "; alternatives: " : ", ") + alternative.plan;
    if (!alternative.response.empty()) line += fmt::format(" ({})", alternative.response);
    if (alternative.predicted_gain) line += " " + gain_text(*alternative.predicted_gain);
  }
  return printable(std::move(line));
}

std::string text(const MeasuredGain& measured) {
  return fmt::format("step {}: measured gain of plan epoch {}: {} (expected {})", measured.step,
                     measured.epoch, gain_text(measured.gain), gain_text(measured.predicted));
}

}  // namespace optimus
