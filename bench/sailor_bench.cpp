// Predicts the plans that Sailor's authors measured on GH200 and on mixed RTX GPUs.
//   bench_sailor [FOLDER]     default: ../shared/traces/sailor/measured_plans, or $OPTIMUS_SHARED/traces/…
// Prints a message and exits if the folder does not exist; the files are not part of this repository.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "simulate/sailor.h"

using namespace optimus;

int main(int argc, char** argv) try {
  const char* shared = std::getenv("OPTIMUS_SHARED");
  const Path folder = argc > 1
                          ? Path(argv[1])
                          : Path(shared != nullptr ? shared : "../shared") / "traces/sailor/measured_plans";
  if (std::error_code error; !std::filesystem::is_directory(folder, error)) {
    fmt::print("{} does not exist: nothing to compare with\n", folder.string());
    return 0;
  }
  std::set<Path> files;
  for (const auto& file : std::filesystem::directory_iterator(folder))
    if (file.path().extension() == ".json") files.insert(file.path());
  TextTable table({"plan", "measured s", "predicted s", "error", "compute", "tensor", "data", "pipeline",
                   "bubble", "host", "measured GB", "predicted GB", "error"});
  double sum[2] = {}, memory = 0;
  int number[2] = {}, num_with_memory = 0;
  for (const Path& path : files) {
    const MeasuredPlanFile file =
        parse_measured_plan(value_or_throw(read_file(path, Bytes(1 << 24))), path.string());
    const StepPrediction step = file.run->simulator->run(fitted_constants());
    const double error = step.seconds / file.seconds - 1;
    const auto bytes = static_cast<double>(file.run->memory(MemoryKind::process, fitted_constants()).value);
    sum[file.is_mixed] += std::abs(error), ++number[file.is_mixed];
    memory += std::abs(bytes / file.bytes - 1), ++num_with_memory;
    const TimeSplit& s = step.split;
    const auto seconds = [](double value) { return fmt::format("{:.3f}", value); };
    table.row({path.stem().string(), seconds(file.seconds), seconds(step.seconds),
               fmt::format("{:+.1f} %", 100 * error), seconds(s.compute), seconds(s.tensor), seconds(s.data),
               seconds(s.pipeline), seconds(s.bubble), seconds(s.host),
               fmt::format("{:.1f}", file.bytes / 1e9), fmt::format("{:.1f}", bytes / 1e9),
               fmt::format("{:+.1f} %", 100 * (bytes / file.bytes - 1))});
  }
  fmt::print("{}\n", table.text());
  for (const int mixed : {0, 1})
    if (number[mixed] > 0)
      fmt::print("{}: {:.1f} % mean error over {} plans\n", mixed ? "mixed GPUs" : "one type",
                 100 * sum[mixed] / number[mixed], number[mixed]);
  if (num_with_memory > 0)
    fmt::print("memory: {:.1f} % mean error over {} plans\n", 100 * memory / num_with_memory,
               num_with_memory);
  return 0;
} catch (const ReportedError& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
