// See history_json.h.
#include "cost/history_json.h"

#include <climits>
#include <cmath>

#include "base/error.h"
#include "cluster/open.h"
#include "plan/plan.h"

namespace optimus {
namespace {

constexpr int kHistoryVersion = 1;
constexpr Bytes kMaxHistoryBytes{std::int64_t{4} << 20};
constexpr double kMaxLogFactor = 10;  // a factor of e^10, far more than any plausible prediction error
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 60;
constexpr std::size_t kMaxNameLength = 100;

ResidualKind read_kind(const JsonView& word) {
  for (std::size_t i = 0; i < kResidualKinds; ++i)
    if (const auto kind = static_cast<ResidualKind>(i); text(kind) == word.text()) return kind;
  word.refuse("a kind of work, such as \"layers\"");
}

double read_number_within(const JsonView& value, double min_value, double max_value) {
  const double number = value.number();
  if (!(number >= min_value && number <= max_value))
    value.refuse(fmt::format("a number from {} to {}", min_value, max_value));
  return number;
}

std::string read_name(const JsonView& value) {
  if (value.text().empty() || value.text().size() > kMaxNameLength) value.refuse("a name of 1 to 100 bytes");
  return value.text();
}

OrderedJson to_json(const Evidence& evidence) {
  return {{"kind", text(evidence.kind)},
          {"where", evidence.device_type},
          {"log_factor", evidence.log_factor},
          {"doubt", evidence.uncertainty},
          {"steps", evidence.steps}};
}

Evidence read_evidence(const JsonView& json) {
  static const std::vector<std::string> keys = {"kind", "where", "log_factor", "doubt", "steps"};
  json.allow_only(keys);
  return {.kind = read_kind(json.at("kind")),
          .device_type = read_name(json.at("where")),
          .log_factor = read_number_within(json.at("log_factor"), -kMaxLogFactor, kMaxLogFactor),
          .uncertainty = read_number_within(json.at("doubt"), 0, kMaxLogFactor),
          .steps = static_cast<int>(json.at("steps").integer(1, INT_MAX))};
}

// The integer members of PastStrategy and their keys in the file.
constexpr std::pair<const char*, int PastStrategy::*> kParts[] = {
    {"pp", &PastStrategy::pp},         {"tp", &PastStrategy::tp},
    {"cp", &PastStrategy::cp},         {"dp", &PastStrategy::dp},
    {"chunks", &PastStrategy::chunks}, {"microbatch", &PastStrategy::microbatch},
    {"zero", &PastStrategy::zero}};

OrderedJson to_json(const PastStrategy& strategy) {
  OrderedJson json;
  for (const auto& [name, member] : kParts) json[name] = strategy.*member;
  json["sequence_parallel"] = strategy.sequence_parallel;
  json["recompute"] = strategy.recompute, json["schedule"] = strategy.schedule;
  return json;
}

PastStrategy read_past_strategy(const JsonView& json) {
  static const std::vector<std::string> keys = {
      "pp", "tp", "cp", "dp", "zero", "chunks", "microbatch", "sequence_parallel", "recompute", "schedule"};
  json.allow_only(keys);
  PastStrategy strategy;
  for (const auto& [name, member] : kParts) {
    const bool is_zero = member == &PastStrategy::zero;
    strategy.*member =
        static_cast<int>(json.at(name).integer(is_zero ? 0 : 1, is_zero ? 3 : kMaxPlanDevices));
  }
  strategy.sequence_parallel = json.at("sequence_parallel").boolean();
  strategy.recompute = json.at("recompute").text(), strategy.schedule = json.at("schedule").text();
  (void)parse_recompute(strategy.recompute, json.at("recompute").location());
  (void)parse_schedule(strategy.schedule, json.at("schedule").location());
  return strategy;
}

OrderedJson to_json(const PastRun& run) {
  OrderedJson json = {{"when", run.end_time},
                      {"device", run.device},
                      {"devices", run.devices},
                      {"parameters", run.parameters},
                      {"layers", run.layers},
                      {"batch", run.batch},
                      {"sequence", run.sequence_length},
                      {"step_seconds", run.step_seconds},
                      {"strategy", to_json(run.strategy)}};
  json["evidence"] = OrderedJson::array();
  for (const Evidence& evidence : run.evidence) json["evidence"].push_back(to_json(evidence));
  return json;
}

PastRun read_run(const JsonView& json) {
  static const std::vector<std::string> keys = {"when",     "device",  "devices",  "parameters",
                                                "layers",   "batch",   "sequence", "step_seconds",
                                                "strategy", "evidence"};
  json.allow_only(keys);
  PastRun run;
  run.end_time = json.at("when").integer(0, kMaxNumber), run.device = read_name(json.at("device"));
  run.devices = static_cast<int>(json.at("devices").integer(1, kMaxPlanDevices));
  run.parameters = json.at("parameters").integer(1, kMaxNumber);
  run.layers = json.at("layers").integer(1, kMaxNumber), run.batch = json.at("batch").integer(1, kMaxNumber);
  run.sequence_length = json.at("sequence").integer(1, kMaxNumber);
  run.step_seconds = read_number_within(json.at("step_seconds"), 1e-9, 1e9);
  run.strategy = read_past_strategy(json.at("strategy"));
  const std::vector<JsonView> evidence = json.at("evidence").elements();
  if (evidence.size() > kMaxEvidence) json.at("evidence").refuse("at most 64 entries");
  for (const JsonView& entry : evidence) run.evidence.push_back(read_evidence(entry));
  return run;
}

}  // namespace

OrderedJson to_json(const History& history) {
  OrderedJson json = {{"format", "optimus-history"}, {"version", kHistoryVersion}};
  json["runs"] = OrderedJson::array();
  for (const PastRun& run : history.runs) json["runs"].push_back(to_json(run));
  return json;
}

History parse_history(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-history") json.at("format").refuse("\"optimus-history\"");
  if (const auto version = json.at("version").integer(); version != kHistoryVersion)
    throw UserError("{}: unsupported version {}; this program reads version {}", source, version,
                    kHistoryVersion);
  static const std::vector<std::string> keys = {"format", "version", "runs"};
  json.allow_only(keys);
  const std::vector<JsonView> runs = json.at("runs").elements();
  if (runs.size() > kMaxPastRuns) json.at("runs").refuse("at most 256 entries");
  History history;
  for (const JsonView& run : runs) add_run(history, read_run(run));
  return history;
}

Path history_path() { return measured_cluster_path().parent_path() / "history.json"; }

History read_history(const std::string& name) {
  const Path path = name == "here" ? history_path() : Path(name);
  return parse_history(read_input_file(path, kMaxHistoryBytes), path.string());
}

Outcome<void> write_history(FileSystem& files, const Path& path, const History& history) {
  if (!path.parent_path().empty())
    if (const Outcome<void> result = files.create_folders(path.parent_path()); !result) return result;
  return write_atomically(files, path, to_json(history).dump(1) + "\n");
}

}  // namespace optimus
