// Trains on two workers, follows 20 steps, switches the plan of the running training, and stops it.
// Everything it has seen goes into a report; the console stays empty.
//
//   consumer FILE RUN_FOLDER REPORT
#include <optimus/plan.h>
#include <optimus/run.h>

#include <atomic>
#include <fstream>
#include <string>

namespace {

const std::map<std::string, std::string> kSmall{
    {"layers", "4"}, {"hidden", "64"}, {"heads", "4"}, {"max-positions", "64"}, {"sample", "0"}};

// Two pipeline stages instead of what the planner chose.
std::string pipeline_plan() {
  std::map<std::string, std::string> more = kSmall;
  more.erase("sample");
  more.insert({{"pp", "2"}, {"vocab", "257"}});
  return optimus::plan(
             {.model = "gpt2", .cluster = "cpux2", .batch = 8, .seq = 32, .precision = "fp32", .more = more})
      .plan;
}

void train(const std::string& file, const std::string& folder, std::ofstream& report) {
  std::atomic<int> num_steps = 0, num_switches = 0;
  optimus::TrainOptions options{.model = "gpt2",
                                .data = {file},
                                .tokenizer = "bytes",
                                .run = folder,
                                .steps = 100000,
                                .batch = 8,
                                .seq = 32,
                                .precision = "fp32",
                                .devices = 2,
                                .is_static = true};
  options.more = kSmall;
  options.more.insert({"dp", "2"});
  optimus::Run run(
      options, {.on_step = [&](const optimus::StepEvent&) { ++num_steps; },
                .on_plan = [&](const optimus::PlanEvent& event) { num_switches += event.kind == "switch"; }});
  for (int step = 1; step <= 20; ++step) {
    const std::optional<optimus::StepEvent> event = run.step();
    report << "step " << event.value().step << " loss " << event->loss << "\n";
  }
  report << "switched: " << run.switch_plan(pipeline_plan()) << "\n";
  const optimus::RunState state = run.status();
  report << "plan " << state.plan << ", " << state.workers.size() << " workers\n";
  run.stop();
  const optimus::TrainResult result = run.wait();
  report << "stopped " << result.is_stopped << " after step " << result.steps << "\n"
         << "callbacks: " << (num_steps >= result.steps) << " steps, " << num_switches << " switches\n";
}

// A mistake is an exception of kind user.
void refuse(std::ofstream& report) {
  try {
    (void)optimus::train("gpt2", "no such file", {});
  } catch (const optimus::Error& error) {
    report << "refused: " << (error.kind() == optimus::ErrorKind::user) << " " << error.what() << "\n";
  }
}

// A run folder that cannot be created is an exception of kind runtime.
void fail_to_write(const std::string& file, std::ofstream& report) {
  try {
    optimus::TrainOptions options{.tokenizer = "bytes", .run = file + "/run", .steps = 1, .devices = 1};
    options.more = kSmall;
    (void)optimus::train("gpt2", file, options);
  } catch (const optimus::Error& error) {
    report << "not written: " << (error.kind() == optimus::ErrorKind::runtime) << " " << error.what() << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::ofstream report(argv[3]);
  try {
    train(argv[1], argv[2], report);
    refuse(report);
    fail_to_write(argv[1], report);
  } catch (const std::exception& error) {
    report << "failed: " << error.what() << "\n";
    return 1;
  }
}
