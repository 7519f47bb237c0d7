// Part of `optimus`: commands that need libtorch execute `optimus-engine` with the same arguments.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/training.h"

namespace optimus {
namespace {

[[noreturn]] void exec_engine() {
  std::error_code error;
  const Path engine = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "optimus-engine";
  if (error || !std::filesystem::exists(engine, error))
    throw UserError(
        "{} does not exist, because the engine has not been built; run ./optimus train --help to build it",
        engine.string());
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command_line{std::istreambuf_iterator<char>(file), {}};
  std::vector<char*> arguments;
  for (std::size_t at = 0; at < command_line.size(); at += std::strlen(command_line.data() + at) + 1)
    arguments.push_back(command_line.data() + at);
  arguments.push_back(nullptr);
  ::execv(engine.c_str(), arguments.data());
  throw RuntimeFailure("could not start {}: {}", engine.string(), std::strerror(errno));
}

}  // namespace

int run_training(TrainOptions&, OptionTable&, Console&) { exec_engine(); }
int run_joining(const Path&, const std::string&, int, Console&) { exec_engine(); }
int run_evaluation(const EvalOptions&, Console&) { exec_engine(); }
int run_generation(const TextOptions&, Console&) { exec_engine(); }
HardwareReport report_hardware(const ProbeOptions&, Console&) { exec_engine(); }
LinksReport report_links(const ProbeOptions&, Console&) { exec_engine(); }
int run_conversion(const ConvertOptions&, Console&) { exec_engine(); }

}  // namespace optimus
