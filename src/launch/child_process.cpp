// Implements child_process.h.
#include "launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "launch/spawn_settings.h"

extern char** environ;

namespace optimus {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  ~Pipe() { close(read), close(write); }
  void open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw RuntimeFailure("cannot create a pipe for a child process: {}", ::strerror(errno));
    // Uses descriptors above those that the child uses, because dup2() of a descriptor to itself would keep
    // its close-on-exec flag.
    read = ::fcntl(ends[0], F_DUPFD_CLOEXEC, 16), write = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 16);
    ::close(ends[0]), ::close(ends[1]);
  }
  static void close(int file) {
    if (file >= 0) ::close(file);
  }
};

std::vector<std::string> variables_with(const ChildOptions& options) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    bool is_replaced = false;
    for (const auto& [name, value] : options.variables) is_replaced |= starts_with(*variable, name + "=");
    if (!is_replaced) result.emplace_back(*variable);
  }
  for (const auto& [name, value] : options.variables) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> word_pointers(std::vector<std::string>& arguments) {
  std::vector<char*> result;
  for (std::string& word : arguments) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

void close_file(int& file) {
  if (file >= 0) ::close(file);
  file = -1;
}

}  // namespace

ChildProcess::ChildProcess(const ChildOptions& options) {
  Pipe in, out, err;
  SpawnSettings settings;
  if (options.has_pipes) {
    in.open(), out.open(), err.open();
    ::posix_spawn_file_actions_adddup2(&settings.actions, in.read, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&settings.actions, out.write, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&settings.actions, err.write, STDERR_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  if (!options.folder.empty())
    ::posix_spawn_file_actions_addchdir_np(&settings.actions, options.folder.c_str());
  ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, STDERR_FILENO + 1);
  ::posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&settings.attributes, 0);
  std::vector<std::string> arguments = options.arguments, variables = variables_with(options);
  const int error = ::posix_spawnp(&pid_, options.program.c_str(), &settings.actions, &settings.attributes,
                                   word_pointers(arguments).data(), word_pointers(variables).data());
  if (error != 0)
    throw RuntimeFailure("cannot start {}{}: {}", options.program,
                         options.folder.empty() ? "" : " in " + options.folder.string(), ::strerror(error));
  input_ = std::exchange(in.write, -1), output_ = std::exchange(out.read, -1);
  errors_ = std::exchange(err.read, -1);
  for (const int file : {input_, output_, errors_})
    if (file >= 0) ::fcntl(file, F_SETFL, O_NONBLOCK);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)),
      errors_(std::exchange(other.errors_, -1)),
      code_(other.code_) {}

ChildProcess::~ChildProcess() {
  close_input(), close_output(), close_errors();
  if (pid_ <= 0 || code()) return;
  signal(SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void ChildProcess::close_input() { close_file(input_); }
void ChildProcess::close_output() { close_file(output_); }
void ChildProcess::close_errors() { close_file(errors_); }

std::optional<int> ChildProcess::code() {
  int status = 0;
  if (!code_ && ::waitpid(pid_, &status, WNOHANG) == pid_)
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

// Sends a signal to the whole process group, including the children of the process. Callers should send each
// signal only once, because programs often treat a second SIGINT as a request to exit immediately.
void ChildProcess::signal(int number) const {
  if (pid_ > 0 && !code_) ::kill(-pid_, number);
}

}  // namespace optimus
