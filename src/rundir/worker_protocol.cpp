// Implements worker_protocol.h.
#include "rundir/worker_protocol.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

namespace optimus {
namespace {

constexpr int kMaxWorldSize = 1 << 20;

std::string word(WorkerReport::End end) {
  switch (end) {
    case WorkerReport::End::done:
      return "done";
    case WorkerReport::End::interrupted:
      return "interrupted";
    case WorkerReport::End::failed:
      return "failed";
    case WorkerReport::End::lost:
      return "lost";
  }
  return "";
}

std::vector<std::string> values_of(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) return {value.dump()};
  std::vector<std::string> result;
  for (const Json& element : value) result.push_back(values_of(element).at(0));
  return result;
}

Origin parse_origin(const JsonView& view) {
  for (const Origin origin : {Origin::built_in, Origin::run, Origin::file, Origin::flag, Origin::planner})
    if (view.text() == text(origin)) return origin;
  view.refuse("one of default, run, file, flag, planner");
}

std::string one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string text(const WorkerSpec& spec) {
  return one_line({{"rank", spec.rank},
                   {"size", spec.size},
                   {"host", spec.host},
                   {"port", spec.port},
                   {"is_etcd", spec.is_etcd},
                   {"token", spec.token},
                   {"run", spec.run.string()},
                   {"device", spec.device},
                   {"threads", spec.threads},
                   {"parent", spec.parent},
                   {"report", spec.report},
                   {"terminal", spec.terminal}});
}

std::optional<WorkerSpec> worker_spec(const Environment& environment) {
  const std::optional<std::string> variable = environment(kWorkerVariable);
  if (!variable) return std::nullopt;
  const Json json = parse_json(*variable, kWorkerVariable);
  const JsonView view(json, kWorkerVariable);
  WorkerSpec spec;
  const auto number = [&](const char* key, std::int64_t minimum, std::int64_t maximum) {
    return static_cast<int>(view.at(key).integer(minimum, maximum));
  };
  spec.size = number("size", 1, kMaxWorldSize), spec.rank = number("rank", 0, spec.size - 1);
  spec.port = number("port", 1, 65535), spec.threads = number("threads", 1, 1 << 16);
  spec.parent = number("parent", 1, INT_MAX);
  spec.report = number("report", 0, INT_MAX), spec.terminal = number("terminal", -1, INT_MAX);
  spec.token = view.at("token").text(), spec.device = view.at("device").text();
  spec.run = view.at("run").text();
  spec.host = view.text_or("host", spec.host), spec.is_etcd = view.boolean_or("is_etcd", false);
  return spec;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::string text(const WorkerReport& report) {
  return one_line({{"end", word(report.end)},
                   {"why", report.why},
                   {"missing", report.missing},
                   {"result", report.result},
                   {"is_user_error", report.is_user_error}});
}

WorkerReport parse_worker_report(const std::string& line) {
  const Json json = parse_json(line, "a worker's report");
  const JsonView view(json, "a worker's report");
  WorkerReport report;
  bool is_known = false;
  for (const auto end : {WorkerReport::End::done, WorkerReport::End::interrupted, WorkerReport::End::failed,
                         WorkerReport::End::lost})
    if (view.at("end").text() == word(end)) report.end = end, is_known = true;
  if (!is_known) view.at("end").refuse("one of done, interrupted, failed, lost");
  report.why = view.at("why").text();
  for (const JsonView& rank : view.at("missing").elements())
    report.missing.push_back(static_cast<int>(rank.integer(0, kMaxWorldSize)));
  if (json.contains("result")) report.result = json["result"];
  report.is_user_error = view.boolean_or("is_user_error", false);
  return report;
}

void throw_run_failure(const std::string& line, bool is_user_error) {
  if (is_user_error) throw UserError("{}", line);
  throw RuntimeFailure("{}", line);
}

Json serialize_options(const OptionTable& table) {
  Json result = Json::object();
  for (const Option* option : table.options())
    if (const Json value = option->value(); !value.is_null())
      result[option->name] = {{"value", value}, {"origin", text(option->origin)}};
  return result;
}

void restore_options(OptionTable& table, const Json& options, const std::string& source) {
  for (const auto& [name, entry] : JsonView(options, source).members()) {
    Option* const option = table.find(name);
    if (option == nullptr) continue;  // not an option of this table
    const Json& value = entry.at("value").raw();
    if (value.is_object()) entry.at("value").refuse("a value or a list");
    const bool is_empty = value.is_string() && value.get_ref<const std::string&>().empty();
    if (!is_empty) option->assign(values_of(value));
    option->origin = parse_origin(entry.at("origin"));
  }
}

Path log_path(int rank) { return Path("logs") / fmt::format("rank-{}.log", rank); }

std::string workers_json(const std::vector<WorkerEntry>& workers) {
  OrderedJson list = OrderedJson::array();
  for (const WorkerEntry& worker : workers)
    list.push_back({{"rank", worker.rank},
                    {"pid", worker.pid},
                    {"host", worker.host},
                    {"device", worker.device},
                    {"log", worker.log.string()}});
  return OrderedJson{{"workers", list}}.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

}  // namespace optimus
