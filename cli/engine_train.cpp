// Part of `optimus-engine`: implements optimus train and optimus join.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cli/training.h"
#include "run/join.h"
#include "run/train.h"
#include "run/train_launched.h"
#include "run/train_workers.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

OrderedJson to_json(const TrainResult& result) {
  OrderedJson json;
  json["run"] = result.run;
  json["steps"] = result.steps;
  json["loss"] = result.loss;
  if (result.validation_loss) json["validation_loss"] = *result.validation_loss;
  json["tokens_per_second"] = result.tokens_per_second;
  if (!result.sample.empty()) json["sample"] = result.sample;
  return json;
}

std::string text(const TrainResult& result) {
  std::string output;
  if (!result.sample.empty()) output += fmt::format("--- sample of generated text\n{}\n---\n", result.sample);
  output += fmt::format("{} steps, loss {:.4f}", result.steps, result.loss);
  if (result.validation_loss) output += fmt::format(", validation {:.4f}", *result.validation_loss);
  return output +
         fmt::format(", {} tokens/s; run folder: {}\n", short_count(result.tokens_per_second), result.run);
}

constexpr int kExitInterrupted = 130;

// Returns the exit code. A stopped run has already printed how to resume it.
int report(const TrainResult& result, Console& console) {
  if (result.end == TrainEnd::stopped) return kExitInterrupted;
  console.result(to_json(result), text(result));
  return 0;
}

// A launcher that ends a run sends SIGTERM to its ranks one after the other. Each rank waits a moment
// before it leaves, so that they all leave together.
StopToken stop_token_of_rank(const Console& console) {
  constexpr std::chrono::milliseconds kGracePeriod{250};
  const auto requested_at = std::make_shared<std::atomic<std::int64_t>>(0);
  return StopToken([stop = console.stop_token(), requested_at, kGracePeriod] {
    const StopRequest request = stop.requested();
    if (request != StopRequest::leave) return request;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const std::int64_t ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    std::int64_t unset = 0;
    requested_at->compare_exchange_strong(unset, ms);
    return ms - *requested_at >= kGracePeriod.count() ? request : StopRequest::none;
  });
}

// The program at the other end of standard input is the host program of this training
// (src/api/engine_process.h). When the host program exits, the training saves a checkpoint and ends. Returns
// false if there is no host program.
bool stop_with_host() {
  if (std::getenv(kHostVariable) == nullptr) return false;
  ::unsetenv(kHostVariable);  // the workers have no host program
  std::thread([] {
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
    ::kill(::getpid(), SIGINT);
  }).detach();
  return true;
}

int train_in_role(TrainOptions& options, OptionTable& table, Console& console) {
  if (const std::optional<WorkerSpec> worker = worker_spec(process_environment()))
    return train_as_worker(*worker, options, table, stop_token_of_rank(console));
  const LaunchInfo launch = detect_launcher(process_environment());
  if (launch.world_size > 1) {
    const LaunchedEnd end =
        train_launched({launch, options, table, console, console.line(), stop_token_of_rank(console)});
    return end.result ? report(*end.result, console) : end.code;
  }
  const WorkerCommand workers{"/proc/self/exe", {"optimus", "train"}, console.stop_token()};
  return report(train(options, &table, console, console.line(), &workers), console);
}

}  // namespace

int run_joining(const Path& run, const std::string& device, int threads, Console& console) {
  TrainOptions options;
  OptionTable table;
  declare(table, options);
  return train_as_joining_worker(
      {.run = std::filesystem::absolute(run), .device = device, .threads = threads}, options, table,
      stop_token_of_rank(console), console.line());
}

int run_training(TrainOptions& options, OptionTable& table, Console& console) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed standard error must not end the training
  if (!stop_with_host()) return train_in_role(options, table, console);
  try {
    return train_in_role(options, table, console);
  } catch (const ReportedError& error) {
    const bool is_user_error = dynamic_cast<const UserError*>(&error) != nullptr;
    console.result({{kFailureKey, is_user_error ? kUserFailure : kRuntimeFailure}}, "");
    throw;
  }
}

}  // namespace optimus
