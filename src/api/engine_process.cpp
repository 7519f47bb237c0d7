// Implements engine_process.h.
#include "api/engine_process.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

// The folder of the shared library that contains this code, or of the program into which it was linked.
Path own_folder() {
  Dl_info info{};
  static const char anchor = 0;
  if (::dladdr(&anchor, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const Path file = std::filesystem::canonical(info.dli_fname, error);
  return error ? Path() : file.parent_path();
}

void add(std::vector<std::string>& arguments, const char* key, const std::string& value) {
  if (!value.empty()) arguments.insert(arguments.end(), {std::string("--") + key, value});
}

void add(std::vector<std::string>& arguments, const char* key, const std::optional<std::int64_t>& value) {
  if (value) add(arguments, key, std::to_string(*value));
}

// Appends available bytes to `text`. Returns false at the end of the file.
bool read_into(int file, std::string& text) {
  char buffer[4096];
  const ssize_t size = ::read(file, buffer, sizeof buffer);
  if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
  return size != 0;
}

}  // namespace

Path find_worker_program(const std::string& named) {
  const char* const variable = std::getenv("OPTIMUS_WORKER_PROGRAM");
  std::vector<Path> places;
  if (!named.empty()) {
    places = {named};
  } else if (variable != nullptr && *variable != '\0') {
    places = {variable};
  } else if (const Path folder = own_folder(); !folder.empty()) {
    for (const char* place : {"../bin/optimus-engine", "../../bin/optimus-engine", "optimus-engine"})
      places.push_back((folder / place).lexically_normal());
  }
  for (const Path& place : places)
    if (::access(place.c_str(), X_OK) == 0) return place;
  std::vector<std::string> names;
  for (const Path& place : places) names.push_back(place.string());
  throw UserError("the worker program optimus-engine was not found at {}; set RunOptions::worker_program",
                  join(names, ", "));
}

std::vector<std::string> train_words(const TrainOptions& options) {
  std::vector<std::string> arguments{"optimus-engine", "train", "--json"};
  add(arguments, "model", options.model);
  if (!options.data.empty()) {
    arguments.emplace_back("--data");
    arguments.insert(arguments.end(), options.data.begin(), options.data.end());
  }
  add(arguments, "tokenizer", options.tokenizer);
  add(arguments, "run", options.run);
  add(arguments, "steps", options.steps), add(arguments, "batch", options.batch);
  add(arguments, "microbatch", options.microbatch), add(arguments, "seq", options.seq);
  if (options.learning_rate) add(arguments, "lr", fmt::format("{}", *options.learning_rate));
  add(arguments, "seed", options.seed);
  add(arguments, "precision", options.precision);
  add(arguments, "devices", options.devices), add(arguments, "device", options.device);
  add(arguments, "plan", options.plan), add(arguments, "policy", options.policy);
  if (options.is_static) arguments.emplace_back("--static");
  add(arguments, "resume", options.resume);
  for (const auto& [key, value] : options.more) {
    arguments.push_back("--" + key);
    if (!value.empty()) arguments.push_back(value);
  }
  return arguments;
}

EngineProcess::EngineProcess(const Path& program, const TrainOptions& options)
    : child_({.program = program.string(),
              .arguments = train_words(options),
              .variables = {{kHostVariable, "1"}},
              .has_pipes = true}) {}

std::vector<std::string> EngineProcess::read_messages(int milliseconds) {
  pollfd files[] = {{child_.output(), POLLIN, 0}, {child_.errors(), POLLIN, 0}};
  if (files[0].fd < 0 && files[1].fd < 0)
    ::usleep(static_cast<useconds_t>(milliseconds) * 1000);
  else
    ::poll(files, 2, milliseconds);
  if (files[0].revents != 0 && !read_into(files[0].fd, output_)) child_.close_output();
  if (files[1].revents != 0 && !read_into(files[1].fd, unfinished_)) child_.close_errors();
  std::vector<std::string> lines;
  for (std::size_t end; (end = unfinished_.find('\n')) != std::string::npos; unfinished_.erase(0, end + 1))
    if (end > 0) lines.push_back(unfinished_.substr(0, end));
  return lines;
}

// Sends SIGINT only once, because a second signal would end the process without a checkpoint.
void EngineProcess::request_stop() {
  if (!std::exchange(is_stop_requested_, true)) child_.signal(SIGINT);
}

}  // namespace optimus
