// optimus doctor: checks this machine and prints a command that fixes each problem.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utf8proc.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/text.h"
#include "base/units.h"
#include "cli/command.h"
#include "cluster/launcher.h"
#include "cluster/token.h"

namespace optimus {
namespace {

struct Check {
  std::string name;
  bool ok = true;
  std::string finding;
  std::string fix;  // a command that fixes the problem; may be empty
};

// Returns the first line of a command's output, or nullopt if the command does not exist or fails.
std::optional<std::string> first_line_of(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::array<char, 512> buffer{};
  std::string line = std::fgets(buffer.data(), buffer.size(), pipe) != nullptr ? buffer.data() : "";
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
  }
  const int status = ::pclose(pipe);
  if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return std::string(trim(line));
}

Check check_tool(const std::string& name, const std::string& command, const std::string& package) {
  const auto version = first_line_of(command);
  if (version) return {name, true, *version, ""};
  return {name, false, "not found", "apt-get install -y " + package};
}

Check check_optional_tool(const std::string& name, const std::string& command,
                          const std::string& consequence) {
  const auto version = first_line_of(command);
  return {name, true, version.value_or("not found: " + consequence), ""};
}

Check check_processor() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  return {"processor", true,
          fmt::format("{} cores, {} memory", std::thread::hardware_concurrency(),
                      text(Bytes(static_cast<std::int64_t>(pages) * page))),
          ""};
}

Check check_disk(const std::string& name, const Path& folder) {
  constexpr std::int64_t kNeeded = std::int64_t{2} << 30;
  Path path = folder;
  std::error_code error;
  while (!path.empty() && !std::filesystem::exists(path, error) && path != path.parent_path())
    path = path.parent_path();
  const auto space = std::filesystem::space(path.empty() ? Path(".") : path, error);
  if (error) return {name, false, folder.string() + ": " + error.message(), "choose another folder"};
  const auto free = static_cast<std::int64_t>(space.available);
  if (::access(path.empty() ? "." : path.c_str(), W_OK) != 0)
    return {name, false, path.string() + " is not writable", "chmod u+w " + path.string()};
  if (free < kNeeded)
    return {name, false, fmt::format("{} free in {}", text(Bytes(free)), path.string()),
            "free at least 2 GiB in this folder"};
  return {name, true, fmt::format("{} free in {}", text(Bytes(free)), folder.string()), ""};
}

std::optional<std::string> variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Path cache_folder() {
  if (const auto configured = variable("OPTIMUS_CACHE")) return *configured;
  if (const auto xdg = variable("XDG_CACHE_HOME")) return Path(*xdg) / "optimus-megatron";
  return Path(variable("HOME").value_or(".")) / ".cache" / "optimus-megatron";
}

// Checks python3's PyTorch. If there is none, checks the PyTorch that training has installed in the cache
// folder.
Check check_pytorch() {
  constexpr const char* kVersion = " -c 'import importlib.metadata as m; print(m.version(\"torch\"))'";
  if (const auto finding = first_line_of(std::string("python3") + kVersion))
    return {"pytorch", true, *finding, ""};
  std::error_code error;
  for (std::filesystem::directory_iterator at(cache_folder() / "venv", error), end; !error && at != end;
       at.increment(error)) {
    const Path python = at->path() / "bin" / "python";
    if (!at->path().filename().string().starts_with("torch-") || !std::filesystem::exists(python)) continue;
    if (const auto finding = first_line_of("'" + python.string() + "'" + kVersion))
      return {"pytorch", true, *finding + " in " + at->path().string() + ", installed by training", ""};
  }
  return {"pytorch", true, "not found: training installs it into the cache when it first starts", ""};
}

Check check_launcher() {
  try {
    const LaunchInfo info = detect_launcher(variable);
    const std::string finding = fmt::format("{}, rank {} of {}", info.launcher, info.rank, info.world_size);
    if (info.world_size == 1) return {"launcher", true, finding, ""};
    if (!info.missing.empty())
      return {"launcher", false,
              fmt::format("{}, on several hosts, but {} is not set", finding, join(info.missing, ", ")),
              fmt::format("export {}=<the host of rank 0>", info.missing[0])};
    if (!info.is_one_host) return {"launcher", true, finding + ", rendezvous at " + info.master(), ""};
    return {"launcher", true, finding + ", all on this host", ""};
  } catch (const UserError& error) {
    return {"launcher", false, error.what(), "unset the variable, or let the launcher set it"};
  }
}

// Checks the access token, which only runs on several hosts need.
Check check_run_token() {
  try {
    if (const auto token = find_token(variable, {}))
      return {"token", true, fmt::format("{} characters from {}", token->text.size(), token->origin), ""};
    const LaunchInfo info = detect_launcher(variable);
    if (info.world_size > 1 && !info.is_one_host)
      return {"token", false, "not set, but the ranks are on several hosts", token_instructions()};
    return {"token", true, "not set: a run on one host creates its own token", ""};
  } catch (const ReportedError& error) {
    return {"token", false, error.what(), token_instructions()};
  }
}

Check list_libraries() {
  return {"libraries", true,
          fmt::format("fmt {}.{}, nlohmann-json {}.{}, PCRE2 {}.{}, utf8proc {}", FMT_VERSION / 10000,
                      FMT_VERSION / 100 % 100, NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                      PCRE2_MAJOR, PCRE2_MINOR, utf8proc_version()),
          ""};
}

// The kernels are compiled to machine code for Hopper and to PTX for Ampere and later (CMakeLists.txt). Older
// GPUs use PyTorch operators.
std::string kernels_for(const std::string& capability) {
  const double number = std::strtod(capability.c_str(), nullptr);
  if (number >= 8.95 && number < 9.05) return "precompiled for this GPU";
  if (number >= 8) return "compiled for this GPU by the driver at the first start";
  return "older than Ampere: PyTorch operators are used instead of the kernels, which is slower";
}

// Returns a command that inspects python3's PyTorch without importing it. The expression may use `cuda()`,
// the CUDA version of PyTorch, and `header(path)`, which fails if the header is not installed next to
// PyTorch.
std::string inspect_pytorch(const std::string& expression) {
  return "python3 -c 'import importlib.util, os, re\n"
         "torch = importlib.util.find_spec(\"torch\").submodule_search_locations[0]\n"
         "def cuda(): return re.search(\"^cuda.*= .([0-9.]+).$\", open(torch + \"/version.py\").read(), "
         "re.M).group(1)\n"
         "def header(path): return path if os.path.exists(torch + \"/../\" + path) else exit(1)\n"
         "print(" +
         expression + ")'";
}

// Returns the GPU checks. On machines without a GPU, returns only a note that training runs on the CPU.
std::vector<Check> gpu_checks() {
  const auto gpu =
      first_line_of("nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader");
  if (!gpu) return {{"gpu", true, "not found: training runs on the CPU", ""}};
  const auto capability = first_line_of("nvidia-smi --query-gpu=compute_cap --format=csv,noheader");
  std::vector<Check> checks = {
      {"gpu", true, *gpu, ""},
      {"gpu kernels", true,
       capability ? kernels_for(*capability) : "the driver does not report the compute capability", ""}};
  const auto require = [&](const std::string& name, const std::string& command, const std::string& fix) {
    const auto finding = first_line_of(command);
    checks.push_back({name, finding.has_value(),
                      finding.value_or("not found: without it, the GPU is not used"),
                      finding ? std::string() : fix});
  };
  require("cuda pytorch", inspect_pytorch("\"for CUDA \" + cuda()"), "python3 -m pip install torch==2.11.0");
  require("cuda compiler", "command -v nvcc >/dev/null && nvcc --version | tail -n 1",
          "export PATH=$PATH:/usr/local/cuda/bin, or install NVIDIA's package cuda-nvcc");
  checks.push_back(check_optional_tool(
      "cudnn frontend", inspect_pytorch("header(\"include/cudnn_frontend.h\")"),
      "attention uses PyTorch, which makes extra copies (python3 -m pip install nvidia-cudnn-frontend)"));
  checks.push_back(
      check_optional_tool("nccl", inspect_pytorch("header(\"nvidia/nccl/include/nccl.h\")"),
                          "GPUs communicate through host memory (python3 -m pip install nvidia-nccl-cu13)"));
  return checks;
}

std::vector<Check> all_checks() {
  std::vector<Check> checks = {
      {"optimus", true, OPTIMUS_VERSION, ""},
      check_processor(),
      check_tool("compiler", "g++ --version", "g++"),
      check_tool("cmake", "cmake --version", "cmake"),
      check_tool("ninja", "ninja --version", "ninja-build"),
      check_optional_tool("ccache", "ccache --version", "builds are not cached (apt-get install -y ccache)"),
      check_optional_tool("lld", "ld.lld --version", "linking is slower (apt-get install -y lld)"),
      check_optional_tool("clang", "clang++-16 --version",
                          "fuzzers are not built (apt-get install -y clang-16 libclang-rt-16-dev)"),
      check_tool("python", "python3 --version", "python3 python3-venv"),
      list_libraries(),
      check_pytorch(),
      check_launcher(),
      check_run_token(),
      check_disk("disk: here", "."),
      check_disk("disk: cache", cache_folder()),
  };
  for (Check& check : gpu_checks()) checks.push_back(std::move(check));
  return checks;
}

class Doctor final : public Command {
 public:
  void declare(OptionTable&) override {}

  int run(Console& console) override {
    OrderedJson list = OrderedJson::array();
    std::string output;
    bool all_ok = true;
    for (const Check& check : all_checks()) {
      list.push_back({{"name", check.name}, {"ok", check.ok}, {"found", check.finding}, {"fix", check.fix}});
      output += fmt::format("{} {:<14} {}\n", check.ok ? "  ok" : "FAIL", check.name, check.finding);
      if (!check.ok) output += fmt::format("     {:<14} fix: {}\n", "", check.fix);
      all_ok = all_ok && check.ok;
    }
    console.result({{"checks", list}}, output);
    return all_ok ? 0 : 1;
  }
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<Doctor>(); }

}  // namespace optimus
