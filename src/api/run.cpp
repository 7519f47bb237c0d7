// Implements include/optimus/run.h and train.h. A thread follows the engine process and the run folder.
#include "optimus/run.h"

#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>

#include "api/boundary.h"
#include "api/engine_process.h"
#include "api/plan_argument.h"
#include "api/run_follower.h"
#include "base/deadline.h"
#include "base/text.h"
#include "checkpoint/checkpoints.h"
#include "cluster/launcher.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "report/status.h"
#include "reshard/control.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

constexpr int kPollMilliseconds = 20;
constexpr int kExitUsage = 2, kExitInterrupted = 130;

std::int64_t step_to_resume_from(const std::string& run) {
  if (run.empty()) return 0;
  const std::optional<CheckpointEntry> newest = newest_complete(run);
  return newest ? newest->step : 0;
}

// Ranks of a launched job other than rank 0 report nothing.
bool is_reporting_rank() {
  const LaunchInfo launch = detect_launcher(process_environment());
  return launch.world_size <= 1 || launch.rank == 0;
}

// The run folder that is used if the options do not name one. The reporting rank creates it here, so that
// runs started in the same second never share a folder. The destructor removes the folder if the run has
// written nothing. If the folder cannot be created, the engine reports why.
class DefaultRunFolder {
 public:
  explicit DefaultRunFolder(const TrainOptions& options) {
    if (!options.run.empty() || !options.resume.empty()) return;
    const std::string stem = "runs/" + name_of(options.model);
    path_ = stem + "-1";
    if (!is_reporting_rank()) return;
    std::error_code error;
    std::filesystem::create_directories("runs", error);
    for (int i = 2; !std::filesystem::create_directory(path_, error) && !error; ++i)
      path_ = fmt::format("{}-{}", stem, i);
    if (!error) created_ = std::filesystem::absolute(path_, error);
  }
  ~DefaultRunFolder() {
    std::error_code error;  // ignored, because the folder may not be empty
    if (!created_.empty()) std::filesystem::remove(created_, error);
  }
  DefaultRunFolder(const DefaultRunFolder&) = delete;

  TrainOptions in(TrainOptions options) const {
    if (!options.resume.empty())
      options.run.clear();
    else if (options.run.empty())
      options.run = path_;
    return options;
  }

 private:
  // Composes a name from the model and the time.
  static std::string name_of(const std::string& model) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    char time[32];
    std::strftime(time, sizeof time, "%Y%m%d-%H%M%S", &parts);
    const std::string name = Path(model.empty() ? "demo" : model).lexically_normal().filename().string();
    return fmt::format("{}-{}", name.empty() ? "model" : name, time);
  }

  std::string path_;  // empty if the options name a folder
  Path created_;
};

TrainResult parse_result(const std::string& output) {
  const Json json = parse_json(output, "the result of the training");
  const JsonView view(json, "the result of the training");
  TrainResult result;
  result.run = view.at("run").text();
  result.steps = view.at("steps").integer();
  result.loss = view.number_or("loss", 0);
  if (const auto loss = view.find("validation_loss")) result.validation_loss = loss->number();
  result.tokens_per_second = view.number_or("tokens_per_second", 0);
  if (const auto sample = view.find("sample")) result.sample = sample->text();
  return result;
}

// Returns the kind of failure that the program has reported. Returns nullopt if it has reported none, because
// it was killed or its options were invalid.
std::optional<ErrorKind> reported_kind(const std::string& output) {
  const Json json = Json::parse(output, nullptr, /*allow_exceptions=*/false);
  const Json kind = json.is_object() ? json.value(kFailureKey, Json()) : Json();
  if (kind == kUserFailure) return ErrorKind::user;
  if (kind == kRuntimeFailure) return ErrorKind::runtime;
  return std::nullopt;
}

// The line in which the program reports why it failed begins with kErrorPrefix.
constexpr std::string_view kErrorPrefix = "optimus: ", kInternalPrefix = "internal error";

}  // namespace

inline namespace v0 {

struct Run::State {
  State(TrainOptions train_options, RunOptions run)
      : default_folder(train_options),
        options(default_folder.in(std::move(train_options))),
        callbacks(std::move(run)),
        folder(options.resume.empty() ? options.run : options.resume),
        is_reporting(is_reporting_rank()),
        follower(folder, step_to_resume_from(options.resume)),
        engine(find_worker_program(callbacks.worker_program), options),
        thread([this] { follow(); }) {}
  ~State() {
    request_stop();
    if (thread.joinable()) thread.join();
  }

  void follow();
  void report(const std::vector<std::string>& lines);
  void record_end(int code);
  void request_stop() {
    const std::lock_guard lock(mutex);
    is_stop_requested = true;
  }
  void throw_if_failed() const {
    if (failure) throw *failure;
  }
  std::optional<StepEvent> next_step();
  void wait_for_steps();

  const DefaultRunFolder default_folder;
  const TrainOptions options;
  const RunOptions callbacks;
  const std::string folder;
  const bool is_reporting;
  RunFollower follower;    // used only by the thread
  EngineProcess engine;    // used only by the thread
  std::string last_error;  // used only by the thread

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<StepEvent> steps;  // not yet returned by step()
  std::optional<StepEvent> last_step;
  bool is_stop_requested = false, has_ended = false;
  TrainResult result;
  std::optional<Error> failure;

  std::thread thread;  // declared last, because it uses all members above
};

void Run::State::report(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (line.starts_with(kErrorPrefix)) last_error = line.substr(kErrorPrefix.size());
    if (callbacks.on_message) callbacks.on_message(line);
  }
  if (!is_reporting) return;
  for (const StepEvent& step : follower.take_steps()) {
    {
      const std::lock_guard lock(mutex);
      steps.push_back(step), last_step = step;
    }
    changed.notify_all();
    if (callbacks.on_step) callbacks.on_step(step);
  }
  for (const PlanEvent& event : follower.take_plans())
    if (callbacks.on_plan) callbacks.on_plan(event);
}

// If a callback throws, the run ends, and the exception is reported as its failure.
void Run::State::follow() {
  std::optional<int> code;
  while (!code) {
    code = engine.code();  // read first, so that output written before the exit is not missed
    const std::vector<std::string> lines = engine.read_messages(code ? 0 : kPollMilliseconds);
    try {
      report(lines);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (!failure)
        failure.emplace(ErrorKind::user, fmt::format("a callback threw an exception: {}", error.what()));
      is_stop_requested = true;
    }
    bool must_stop = false;
    {
      const std::lock_guard lock(mutex);
      must_stop = is_stop_requested;
    }
    if (must_stop) engine.request_stop();
  }
  while (true) {  // drains the pipes
    const std::vector<std::string> lines = engine.read_messages(0);
    if (lines.empty()) break;
    report(lines);
  }
  record_end(*code);
}

void Run::State::record_end(int code) {
  const std::lock_guard lock(mutex);
  try {
    if (code == 0 && is_reporting) {
      result = parse_result(engine.output());
    } else if (code == 0 || code == kExitInterrupted) {
      result.run = folder, result.is_stopped = code != 0;
      if (last_step) {
        result.steps = last_step->step, result.loss = last_step->loss;
        result.validation_loss = last_step->validation_loss;
        result.tokens_per_second = last_step->tokens_per_second;
      }
    } else if (!failure) {
      const bool is_internal = last_error.starts_with(kInternalPrefix);
      const std::string why =
          last_error.empty() ? fmt::format("the worker program exited with code {}", code) : last_error;
      const bool has_begun = last_step.has_value() || code > kExitUsage;
      const ErrorKind default_kind = is_internal ? ErrorKind::internal
                                     : has_begun ? ErrorKind::runtime
                                                 : ErrorKind::user;
      failure.emplace(reported_kind(engine.output()).value_or(default_kind), why);
    }
    result.is_reporting = is_reporting;
  } catch (const std::exception& error) {
    failure.emplace(ErrorKind::internal, error.what());
  }
  has_ended = true;
  changed.notify_all();
}

std::optional<StepEvent> Run::State::next_step() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return !steps.empty() || has_ended; });
  if (steps.empty()) {
    throw_if_failed();
    return std::nullopt;
  }
  const StepEvent step = steps.front();
  steps.pop_front();
  return step;
}

// Waits until the first step has ended, because the run does not answer requests before that.
void Run::State::wait_for_steps() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return last_step.has_value() || has_ended; });
  throw_if_failed();
  if (has_ended) throw Error(ErrorKind::user, fmt::format("{}: the run has ended", folder));
}

Run::Run(TrainOptions options, RunOptions run)
    : state_(at_boundary([&] { return std::make_unique<State>(std::move(options), std::move(run)); })) {}
Run::~Run() = default;
Run::Run(Run&&) noexcept = default;
Run& Run::operator=(Run&&) noexcept = default;

std::optional<StepEvent> Run::step() { return state_->next_step(); }

RunState Run::status() const {
  return at_boundary([&] {
    RunState result;
    result.run = state_->folder;
    {
      const std::lock_guard lock(state_->mutex);
      result.is_running = !state_->has_ended;
    }
    std::error_code error;
    if (!std::filesystem::exists(Path(state_->folder) / "plan.json", error)) return result;
    const RunStatus status = status_of(state_->folder);
    result.step = status.step, result.plan_epoch = status.epoch, result.steps = status.steps;
    result.loss = status.loss, result.tokens_per_second = status.tokens_per_second;
    result.plan = short_text(status.plan);
    for (const WorkerStatus& one : status.workers)
      result.workers.push_back(
          {one.worker.rank, one.worker.pid, one.worker.host, one.worker.device, one.state});
    return result;
  });
}

std::string Run::switch_plan(const std::string& plan, std::chrono::seconds timeout) {
  return at_boundary([&] {
    std::optional<Plan> requested_plan;
    if (plan != "auto") requested_plan = parse_plan_argument(plan);
    state_->wait_for_steps();
    const Outcome<ControlAnswer> answer =
        send_request(state_->folder, switch_request_json(requested_plan),
                     Deadline::after(Seconds(static_cast<double>(timeout.count())), "the switch"));
    if (!answer) throw Error(ErrorKind::runtime, answer.error().why);
    if (!answer->is_done) throw Error(ErrorKind::user, answer->text);
    return answer->text;
  });
}

void Run::stop() { state_->request_stop(); }

TrainResult Run::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->has_ended; });
  state_->throw_if_failed();
  return state_->result;
}

TrainResult train(const std::string& model, const std::string& data, TrainOptions options) {
  options.model = model;
  options.data = {data};
  return Run(std::move(options)).wait();
}

}  // namespace v0
}  // namespace optimus
