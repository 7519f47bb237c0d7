// Implements decisions.h.
#include "observe/decisions.h"

#include "base/error.h"
#include "observe/json_lines.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxAlternatives = 16;
constexpr std::size_t kMaxDecisionBytes = 64 << 10;  // as in metrics.cpp: a resumed run reads these lines
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;

OrderedJson or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

// Evidence may contain host names that are not valid UTF-8; they are replaced instead of throwing.
std::string line_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson json_of(const std::vector<PlanAlternative>& plans) {
  OrderedJson list = OrderedJson::array();
  for (const PlanAlternative& one : plans)
    list.push_back(
        {{"plan", one.plan}, {"response", one.response}, {"predicted_gain", or_null(one.predicted_gain)}});
  return list;
}

std::optional<double> number_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> found = view.find(name);
  return found ? std::optional(found->number()) : std::nullopt;
}

Bytes bytes_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> found = view.find(name);
  return Bytes(found ? found->integer(0) : 0);
}

Seconds seconds_in(const JsonView& view, const char* name) {
  const std::optional<JsonView> found = view.find(name);
  if (!found) return {};
  const double value = found->number();
  if (!(value >= 0)) found->refuse("a number of at least 0");
  return Seconds(value);
}

Decision decision_in(const JsonView& view) {
  Decision one{.step = view.at("step").integer(0, kMaxSteps), .kind = view.at("kind").text()};
  one.evidence = view.text_or("evidence", ""), one.cause = view.text_or("cause", "");
  one.from = view.text_or("from", ""), one.to = view.text_or("to", "");
  if (const auto epoch = view.find("epoch")) one.epoch = epoch->integer(0, kMaxSteps);
  one.predicted_gain = number_in(view, "predicted_gain");
  one.measured_gain = number_in(view, "realised_gain");
  one.pause = seconds_in(view, "pause_seconds"), one.prepare = seconds_in(view, "prepare_seconds");
  one.moved = bytes_in(view, "moved_bytes"), one.minimum = bytes_in(view, "minimum_bytes");
  one.early = bytes_in(view, "early_bytes"), one.precopied = bytes_in(view, "precopied_bytes");
  if (const auto plans = view.find("alternatives"))
    for (const JsonView& plan : plans->elements())
      one.alternatives.push_back(
          {plan.at("plan").text(), plan.text_or("response", ""), number_in(plan, "predicted_gain")});
  return one;
}

// Assigns a measured gain to the newest switch of that epoch: epoch numbers repeat if a run resumes from an
// older checkpoint. Without such a switch the gain is ignored, since its line was dropped then.
void assign_measured_gain(const JsonView& view, std::vector<Decision>& decisions) {
  const std::int64_t epoch = view.at("epoch").integer(0, kMaxSteps);
  const std::optional<double> gain = number_in(view, "realised_gain");  // null if it was not finite
  for (auto one = decisions.rbegin(); one != decisions.rend(); ++one)
    if (one->kind == "switch" && one->epoch == epoch) {
      one->measured_gain = gain;
      return;
    }
}

// Removes control characters, so that file content cannot control a terminal.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

}  // namespace

OrderedJson to_json(const Decision& decision) {
  return {{"step", decision.step},
          {"kind", decision.kind},
          {"evidence", decision.evidence},
          {"cause", decision.cause.empty() ? OrderedJson() : OrderedJson(decision.cause)},
          {"from", decision.from},
          {"to", decision.to},
          {"epoch", decision.epoch},
          {"predicted_gain", or_null(decision.predicted_gain)},
          {"realised_gain", or_null(decision.measured_gain)},
          {"pause_seconds", decision.pause.value},
          {"prepare_seconds", decision.prepare.value},
          {"moved_bytes", decision.moved.value},
          {"minimum_bytes", decision.minimum.value},
          {"early_bytes", decision.early.value},
          {"precopied_bytes", decision.precopied.value},
          {"alternatives", json_of(decision.alternatives)}};
}

std::string decision_line(const Decision& decision) {
  if (decision.alternatives.size() <= kMaxAlternatives) return line_of(to_json(decision));
  Decision shorter = decision;
  shorter.alternatives.resize(kMaxAlternatives);
  return line_of(to_json(shorter));
}

std::string measured_gain_line(std::int64_t step, std::int64_t epoch, double gain) {
  return line_of({{"step", step}, {"kind", "realised"}, {"epoch", epoch}, {"realised_gain", gain}});
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

std::string text(const Decision& decision, const std::string& from, const std::string& to) {
  const bool stays = decision.kind == "stay";
  const std::string what = decision.kind == "switch" ? "" : decision.kind + ": ";
  std::string line = fmt::format("step {}: {}{}", decision.step, what, decision.evidence);
  const bool has_arrow = decision.evidence.find("→") != std::string::npos;  // "batch 2 → 4"
  line += stays ? fmt::format(" ({})", from) : fmt::format("{} {} → {}", has_arrow ? ";" : " →", from, to);
  if (decision.predicted_gain) line += ", predicted " + gain_text(*decision.predicted_gain);
  if (decision.measured_gain) line += ", measured " + gain_text(*decision.measured_gain);
  if (!stays)
    line += fmt::format(", paused {}, moved {} (bound {})", text(decision.pause), text(decision.moved),
                        text(decision.minimum));
  for (std::size_t i = 0; i < decision.alternatives.size(); ++i) {
    const PlanAlternative& one = decision.alternatives[i];
    line += (i == 0 ? "; alternatives: " : ", ") + one.plan;
    if (!one.response.empty()) line += fmt::format(" ({})", one.response);
    if (one.predicted_gain) line += " " + gain_text(*one.predicted_gain);
  }
  return printable(std::move(line));
}

}  // namespace optimus
