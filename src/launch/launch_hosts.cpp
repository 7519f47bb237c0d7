// Implements launch_on_hosts() of launch_hosts.h.
#include "launch/launch_hosts.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/deadline.h"
#include "base/json.h"
#include "base/text.h"
#include "cluster/token.h"
#include "launch/child_process.h"

namespace optimus {
namespace {

constexpr Seconds kHostGrace{20};         // time that other hosts have after the first has failed
constexpr Seconds kControlInputGrace{8};  // time that hosts have after their standard input was closed
constexpr std::size_t kMaxLineBytes = 1 << 16;

// Quotes a word for the shell on the other host.
std::string shell_quoted(const std::string& word) {
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::vector<std::string> split_hosts(const std::string& text) {
  std::vector<std::string> hosts = split(text, ',');
  for (std::string& host : hosts) {
    host = trim(host);
    // ssh would interpret a name that begins with a dash as an option.
    if (host.empty() || host[0] == '-' || host.find_first_of(" \t\n'\"\\") != std::string::npos)
      throw UserError("--hosts {}: {} is not a host name; separate names with commas, as in a,b,c",
                      in_quotes(text), in_quotes(host));
  }
  return hosts;
}

// Returns the host name from user@host.
std::string name_of_host(const std::string& host) { return host.substr(host.find('@') + 1); }

class Host {
 public:
  Host(std::string name, const ChildOptions& child_options, std::string settings)
      : name_(std::move(name)), child_(child_options), unsent_(std::move(settings)) {}

  const std::string& name() const { return name_; }
  ChildProcess& child() { return child_; }
  std::optional<int> code() { return child_.code(); }
  bool has_ended() { return child_.output() < 0 && child_.errors() < 0 && code().has_value(); }

  void add_to(std::vector<pollfd>& files) const {
    if (child_.output() >= 0) files.push_back({child_.output(), POLLIN, 0});
    if (child_.errors() >= 0) files.push_back({child_.errors(), POLLIN, 0});
    if (child_.input() >= 0 && !unsent_.empty()) files.push_back({child_.input(), POLLOUT, 0});
  }
  void transfer_data() {
    send_some();
    read_some(child_.output(),
              [&](std::string_view bytes) {
                std::fwrite(bytes.data(), 1, bytes.size(), stdout);
                std::fflush(stdout);
              }) ||
        (child_.close_output(), true);
    read_some(child_.errors(), [&](std::string_view bytes) { show_lines(bytes); }) ||
        (show_rest(), child_.close_errors(), true);
  }
  void ask_to_end() { unsent_ += "end\n"; }
  void close_control_input() { child_.close_input(), unsent_.clear(); }

 private:
  void send_some() {
    if (child_.input() < 0 || unsent_.empty()) return;
    const ssize_t size = ::write(child_.input(), unsent_.data(), unsent_.size());
    if (size > 0) unsent_.erase(0, static_cast<std::size_t>(size));
    if (size < 0 && errno != EAGAIN && errno != EINTR) close_control_input();
  }
  // Returns false at the end of the file.
  template <typename Show>
  static bool read_some(int file, Show&& show) {
    char block[1 << 14];
    while (file >= 0) {
      const ssize_t size = ::read(file, block, sizeof block);
      if (size > 0) show(std::string_view(block, static_cast<std::size_t>(size)));
      if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (size < 0) return true;
    }
    return true;
  }
  void show_lines(std::string_view bytes) {
    line_ += bytes;
    for (std::size_t end = 0;
         (end = line_.find('\n')) != std::string::npos || line_.size() > kMaxLineBytes;) {
      end = std::min(end, line_.size());
      fmt::print(stderr, "{}: {}\n", name_, line_.substr(0, end));
      line_.erase(0, end + 1);
    }
  }
  void show_rest() {
    if (!line_.empty()) show_lines("\n");
  }

  const std::string name_;
  ChildProcess child_;
  std::string unsent_, line_;
};

std::vector<Host> start_hosts(const LaunchOptions& options, const std::string& token) {
  const std::vector<std::string> names = split_hosts(options.hosts);
  const int per_host = options.per_host, size = per_host * static_cast<int>(names.size());
  const std::string master = options.master.empty() ? name_of_host(names[0]) : options.master;
  const std::string job = generate_token();
  const int port = options.port > 0 ? options.port : port_of_job(job);
  std::vector<std::string> ssh = split(options.ssh, ' ');
  std::erase(ssh, "");
  if (ssh.empty())
    throw UserError("--ssh is empty; specify a program that connects to a host, for example ssh");
  std::vector<Host> hosts;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Json settings = {{"folder", std::filesystem::current_path().string()},
                           {"program", options.program},
                           {"words", options.command},
                           {"first", static_cast<int>(i) * per_host},
                           {"count", per_host},
                           {"size", size},
                           {"variables",
                            {{"MASTER_ADDR", master},
                             {"MASTER_PORT", std::to_string(port)},
                             {"OPTIMUS_JOB", job},
                             {kTokenVariable, token}}}};
    ChildOptions child_options{.program = ssh[0], .arguments = ssh, .has_pipes = true};
    child_options.arguments.insert(child_options.arguments.end(),
                                   {names[i], "exec " + shell_quoted(options.program) + " launch --here"});
    hosts.emplace_back(names[i], child_options, settings.dump() + "\n");
  }
  return hosts;
}

}  // namespace

int launch_on_hosts(const LaunchOptions& options, const Environment& environment, const StopToken& stop) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto token = find_token(environment, options.token_file);
  std::vector<Host> hosts = start_hosts(options, token ? token->text : generate_token());
  std::optional<Deadline> grace_deadline, kill_deadline;
  std::string failure_text;
  bool is_end_requested = false;
  while (!std::all_of(hosts.begin(), hosts.end(), [](Host& host) { return host.has_ended(); })) {
    std::vector<pollfd> files;
    for (const Host& host : hosts) host.add_to(files);
    ::poll(files.data(), files.size(), 50);
    for (Host& host : hosts) host.transfer_data();
    if (stop.is_requested() && !is_end_requested) {
      is_end_requested = true;
      for (Host& host : hosts) host.ask_to_end();
      grace_deadline = Deadline::after(kHostGrace, "the hosts");
    }
    for (Host& host : hosts)
      if (const auto code = host.code(); code && *code != 0 && *code != 130 && failure_text.empty()) {
        failure_text =
            fmt::format("{} exited with code {}{}", host.name(), *code,
                        *code == 255 ? " (ssh returns this code if it cannot reach the host)" : "");
        grace_deadline = Deadline::after(kHostGrace, "the other hosts");
      }
    if (grace_deadline && grace_deadline->has_passed() && !kill_deadline) {
      for (Host& host : hosts) host.close_control_input();
      kill_deadline = Deadline::after(kControlInputGrace, "the other hosts");
    }
    if (kill_deadline && kill_deadline->has_passed())
      for (Host& host : hosts)
        host.child().signal(SIGKILL), host.child().close_output(), host.child().close_errors();
  }
  if (!failure_text.empty()) throw RuntimeFailure("{}", failure_text);
  const bool is_interrupted =
      std::any_of(hosts.begin(), hosts.end(), [](Host& host) { return host.code() == 130; });
  return is_interrupted ? 130 : 0;
}

}  // namespace optimus
