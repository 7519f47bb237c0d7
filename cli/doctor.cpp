// optimus doctor: what this machine has, what is missing, and the line that fixes it.
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

namespace optimus {
namespace {

struct Check {
  std::string name;
  bool ok = true;
  std::string found;
  std::string fix;  // the line that mends it; empty when ok
};

// The first line that a command prints; nothing when it does not exist or fails.
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

Check tool(const std::string& name, const std::string& command, const std::string& package) {
  const auto version = first_line_of(command);
  if (version) return {name, true, *version, ""};
  return {name, false, "not found", "apt-get install -y " + package};
}

Check optional_tool(const std::string& name, const std::string& command, const std::string& without) {
  const auto version = first_line_of(command);
  return {name, true, version.value_or("not found: " + without), ""};
}

Check processor() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  return {"processor", true,
          fmt::format("{} cores, {} of memory", std::thread::hardware_concurrency(),
                      text(Bytes(static_cast<std::int64_t>(pages) * page))),
          ""};
}

Check disk(const std::string& name, const Path& folder) {
  constexpr std::int64_t kNeeded = std::int64_t{2} << 30;
  Path place = folder;
  std::error_code error;
  while (!place.empty() && !std::filesystem::exists(place, error) && place != place.parent_path())
    place = place.parent_path();
  const auto space = std::filesystem::space(place.empty() ? Path(".") : place, error);
  if (error) return {name, false, folder.string() + ": " + error.message(), "choose another folder"};
  const auto free = static_cast<std::int64_t>(space.available);
  if (::access(place.empty() ? "." : place.c_str(), W_OK) != 0)
    return {name, false, place.string() + " is not writable", "chmod u+w " + place.string()};
  if (free < kNeeded)
    return {name, false, fmt::format("{} free in {}", text(Bytes(free)), place.string()), "free 2 GiB there"};
  return {name, true, fmt::format("{} free in {}", text(Bytes(free)), folder.string()), ""};
}

std::optional<std::string> variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Path cache_folder() {
  if (const auto own = variable("OPTIMUS_CACHE")) return *own;
  if (const auto xdg = variable("XDG_CACHE_HOME")) return Path(*xdg) / "optimus-megatron";
  return Path(variable("HOME").value_or(".")) / ".cache" / "optimus-megatron";
}

Check launcher() {
  try {
    const LaunchInfo info = detect_launcher(variable);
    return {"launcher", true,
            fmt::format("{}, rank {} of {}{}", info.launcher, info.rank, info.world_size,
                        info.master.empty() ? "" : ", meeting at " + info.master),
            ""};
  } catch (const UserError& error) {
    return {"launcher", false, error.what(), "unset the variable, or let the launcher set it"};
  }
}

Check libraries() {
  return {"libraries", true,
          fmt::format("fmt {}.{}, nlohmann-json {}.{}, PCRE2 {}.{}, utf8proc {}", FMT_VERSION / 10000,
                      FMT_VERSION / 100 % 100, NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                      PCRE2_MAJOR, PCRE2_MINOR, utf8proc_version()),
          ""};
}

std::vector<Check> all_checks() {
  return {
      {"optimus", true, OPTIMUS_VERSION, ""},
      processor(),
      tool("compiler", "g++ --version", "g++"),
      tool("cmake", "cmake --version", "cmake"),
      tool("ninja", "ninja --version", "ninja-build"),
      optional_tool("ccache", "ccache --version", "builds start from nothing (apt-get install -y ccache)"),
      optional_tool("mold", "mold --version", "linking is slower (apt-get install -y mold)"),
      optional_tool("clang", "clang++-16 --version",
                    "fuzzers are not built (apt-get install -y clang-16 libclang-rt-16-dev)"),
      tool("python", "python3 --version", "python3 python3-venv"),
      libraries(),
      optional_tool("pytorch", "python3 -c 'import importlib.metadata as m; print(m.version(\"torch\"))'",
                    "training installs its own into the cache"),
      optional_tool("gpu", "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader",
                    "none, training runs on the processor"),
      optional_tool("cuda compiler", "command -v nvcc >/dev/null && nvcc --version | tail -n 1",
                    "GPU kernels are not built"),
      launcher(),
      disk("disk: here", "."),
      disk("disk: cache", cache_folder()),
  };
}

class Doctor final : public Command {
 public:
  void declare(OptionTable&) override {}

  int run(Console& console) override {
    OrderedJson list = OrderedJson::array();
    std::string shown;
    bool is_well = true;
    for (const Check& check : all_checks()) {
      list.push_back({{"name", check.name}, {"ok", check.ok}, {"found", check.found}, {"fix", check.fix}});
      shown += fmt::format("{} {:<14} {}\n", check.ok ? "  ok" : "FAIL", check.name, check.found);
      if (!check.ok) shown += fmt::format("     {:<14} fix: {}\n", "", check.fix);
      is_well = is_well && check.ok;
    }
    console.result({{"checks", list}}, shown);
    return is_well ? 0 : 1;
  }
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<Doctor>(); }

}  // namespace optimus
