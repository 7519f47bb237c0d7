// See control.h.
#include "reshard/control.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <thread>

#include "plan/plan_json.h"

namespace optimus {
namespace {

constexpr const char *kRequest = ".request", *kTaken = ".taken", *kAnswer = ".answer";
constexpr Seconds kPollInterval{0.05};
constexpr Bytes kMaxAnswerBytes{std::int64_t{1} << 30};

Path control_folder(const Path& run) { return run / "control"; }

std::string request_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("{}-{}", std::chrono::duration_cast<std::chrono::microseconds>(now).count(), ::getpid());
}

ControlRequest parse_request(const Path& path) {
  const Json json = read_json(path);
  const JsonView view(json, path.string());
  const std::string name = path.stem().string();
  if (const auto rank = view.find("drain"))
    return DrainRequest{name, static_cast<int>(rank->integer(0, INT_MAX))};
  const JsonView plan = view.at("plan");
  const std::string reason = view.text_or("why", "requested");
  if (plan.raw() == "auto") return SwitchRequest{name, std::nullopt, reason};
  return SwitchRequest{name, parse_plan(plan.raw().dump(), path.string()), reason};
}

void remove_quietly(const Path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
}

std::vector<std::string> names_with(const Path& folder, const char* extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == extension) names.push_back(at->path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

ControlFolder::ControlFolder(Path run) : folder_(control_folder(run)) {}

std::vector<std::string> ControlFolder::waiting() const { return names_with(folder_, kRequest); }
std::vector<std::string> ControlFolder::claimed_requests() const { return names_with(folder_, kTaken); }

std::optional<ControlRequest> ControlFolder::next() {
  if (next_poll_ && !next_poll_->has_passed()) return std::nullopt;
  next_poll_ = Deadline::after(kPollInterval, "the next poll");
  for (const std::string& name : waiting()) {
    try {
      return parse_request(folder_ / (name + kRequest));
    } catch (const ReportedError& error) {
      write_answer(name, {false, error.what()});
    }
  }
  return std::nullopt;
}

void ControlFolder::write_answer(const std::string& name, const ControlAnswer& answer) {
  RealFileSystem files;
  const Json json{{"done", answer.is_done}, {"text", answer.text}};
  (void)write_atomically(files, folder_ / (name + kAnswer),
                         json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  for (const char* const kind : {kRequest, kTaken}) remove_quietly(folder_ / (name + kind));
}

bool ControlFolder::claim(const std::string& name) {
  std::error_code error;
  std::filesystem::rename(folder_ / (name + kRequest), folder_ / (name + kTaken), error);
  return std::filesystem::exists(folder_ / (name + kTaken), error);
}

void ControlFolder::refuse_claimed(const std::string& why) {
  for (const std::string& name : claimed_requests()) write_answer(name, {false, why});
}

void ControlFolder::refuse_drains(const std::string& why, bool is_claimer_lost) {
  if (is_claimer_lost) refuse_claimed(why);
  for (const std::string& name : waiting()) {
    try {
      if (std::holds_alternative<DrainRequest>(parse_request(folder_ / (name + kRequest))))
        write_answer(name, {false, why});
    } catch (const ReportedError&) {  // next() responds to invalid requests
    }
  }
}

void ControlFolder::close(const std::string& why) {
  for (const std::string& name : waiting()) write_answer(name, {false, why});
  refuse_claimed(why);
}

OrderedJson switch_request_json(const std::optional<Plan>& plan, const std::string& why) {
  return {{"plan", plan ? to_json(*plan) : OrderedJson("auto")}, {"why", why}};
}
OrderedJson drain_request_json(int rank) { return {{"drain", rank}}; }

Outcome<ControlAnswer> send_request(const Path& run, const OrderedJson& control_request,
                                    const Deadline& deadline) {
  RealFileSystem files;
  const Path folder = control_folder(run);
  if (Outcome<void> result = files.create_folders(folder); !result) return tl::unexpected(result.error());
  const std::string name = request_name();
  const Path request = folder / (name + kRequest), reply = folder / (name + kAnswer);
  if (Outcome<void> result = write_atomically(files, request, control_request.dump() + "\n"); !result)
    return tl::unexpected(result.error());
  std::error_code error;
  while (!std::filesystem::exists(reply, error)) {
    if (deadline.has_passed()) {
      remove_quietly(request);
      if (std::filesystem::exists(folder / (name + kTaken), error))
        return failure("{} is still processing the request after {}; check optimus status", run.string(),
                       deadline.name());
      return failure("{} did not answer before the deadline ({}); check that it is running", run.string(),
                     deadline.name());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const Outcome<std::string> text = read_file(reply, kMaxAnswerBytes);
  if (!text) return tl::unexpected(text.error());
  remove_quietly(reply);
  const Json json = parse_json(*text, reply.string());
  const JsonView view(json, reply.string());
  return ControlAnswer{view.at("done").boolean(), view.at("text").text()};
}

}  // namespace optimus
