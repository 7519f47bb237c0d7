// Implements launch_here() of launch_hosts.h, which runs on each host.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/deadline.h"
#include "base/json.h"
#include "launch/child_process.h"
#include "launch/launch_hosts.h"

namespace optimus {
namespace {

constexpr Seconds kTaskTimeout{60};
// How long the ranks on this host may continue after one of them has failed or they were asked to stop.
constexpr Seconds kRankGrace{15};
constexpr std::size_t kMaxTaskBytes = 1 << 20;

// Reads lines from standard input without blocking, and detects the end of the input.
class ControlInput {
 public:
  ControlInput() { ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK); }
  bool is_closed() const { return is_closed_; }
  // Waits at most `milliseconds` for the next line.
  std::optional<std::string> line(int milliseconds) {
    pollfd poll_entry{STDIN_FILENO, POLLIN, 0};
    if (is_closed_ || buffer_.find('\n') != std::string::npos) poll_entry.fd = -1;
    ::poll(&poll_entry, 1, is_closed_ || poll_entry.fd >= 0 ? milliseconds : 0);
    read_some();
    const std::size_t end = buffer_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string result = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    return result;
  }

 private:
  void read_some() {
    char block[4096];
    while (!is_closed_ && buffer_.size() < kMaxTaskBytes) {
      const ssize_t size = ::read(STDIN_FILENO, block, sizeof block);
      if (size > 0) buffer_.append(block, static_cast<std::size_t>(size));
      if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) is_closed_ = true;
      if (size <= 0) return;
    }
  }
  bool is_closed_ = false;
  std::string buffer_;
};

struct HostTask {
  ChildOptions child_options;
  int first_rank = 0, count = 1, size = 1;
};

HostTask parse_task(const std::string& line) {
  const Json json = parse_json(line, "the task from optimus launch");
  const JsonView view(json, "the task from optimus launch");
  HostTask task;
  task.size = static_cast<int>(view.at("size").integer(1, 1 << 20));
  task.count = static_cast<int>(view.at("count").integer(1, 4096));
  task.first_rank = static_cast<int>(view.at("first").integer(0, task.size - task.count));
  task.child_options.program = view.at("program").text();
  task.child_options.arguments = {"optimus"};
  for (const JsonView& word : view.at("words").elements())
    task.child_options.arguments.push_back(word.text());
  task.child_options.folder = view.at("folder").text();
  for (const auto& [name, value] : view.at("variables").members())
    task.child_options.variables.emplace_back(name, value.text());
  return task;
}

std::vector<ChildProcess> start_ranks(const HostTask& task) {
  std::vector<ChildProcess> ranks;
  for (int local = 0; local < task.count; ++local) {
    ChildOptions child_options = task.child_options;
    const auto set = [&](const char* name, int value) {
      child_options.variables.emplace_back(name, std::to_string(value));
    };
    set("OPTIMUS_RANK", task.first_rank + local), set("OPTIMUS_WORLD_SIZE", task.size);
    set("OPTIMUS_LOCAL_RANK", local), set("OPTIMUS_LOCAL_SIZE", task.count);
    set("OPTIMUS_LAUNCH_PARENT", ::getpid());
    ranks.emplace_back(child_options);
  }
  return ranks;
}

HostTask wait_for_task(ControlInput& input, const StopToken& stop) {
  const Deadline deadline = Deadline::after(kTaskTimeout, "optimus launch");
  while (!deadline.has_passed() && !stop.is_requested()) {
    if (const auto line = input.line(100)) return parse_task(*line);
    if (input.is_closed()) break;
  }
  throw UserError(
      "optimus launch --here is started by optimus launch and reads its task from standard input");
}

}  // namespace

int launch_here(const StopToken& stop) {
  std::signal(SIGPIPE, SIG_IGN);
  ControlInput input;
  std::vector<ChildProcess> ranks = start_ranks(wait_for_task(input, stop));
  std::optional<Deadline> grace_deadline;
  bool is_end_requested = false;
  int code = 0;
  while (true) {
    bool has_ended = true;
    for (ChildProcess& rank : ranks) {
      const auto exit_code = rank.code();
      has_ended &= exit_code.has_value();
      // A failure takes precedence over an interruption.
      if (exit_code && *exit_code != 0 && code != 1) code = *exit_code == 130 ? 130 : 1;
    }
    if (has_ended) return code;
    if (code == 1 && !grace_deadline) grace_deadline = Deadline::after(kRankGrace, "the other ranks");
    const auto line = input.line(20);
    if (input.is_closed()) break;  // the launching process has exited, so the ranks are stopped
    if (!is_end_requested && (stop.is_requested() || line == "end")) {
      is_end_requested = true, grace_deadline = Deadline::after(kRankGrace, "the ranks");
      // SIGINT stops the run; SIGTERM would only make one rank leave
      for (ChildProcess& rank : ranks) rank.signal(SIGINT);
    }
    if (grace_deadline && grace_deadline->has_passed()) break;
  }
  return code == 0 ? 1 : code;  // the destructors kill the ranks
}

}  // namespace optimus
