// What tests/parity/tensorboard_parity.py lets TensorBoard read:
//   tensorboard_tool FOLDER LAST_STEP WALL_TIME < metrics.jsonl
// writes an event file for a run that is resumed after LAST_STEP, each step one second after the one
// before.
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "base/json.h"
#include "observe/tensorboard.h"

namespace optimus {
namespace {

double number(const JsonView& line, std::string_view key) { return line.number_or(key, std::nan("")); }

std::optional<double> optional_number(const JsonView& line, std::string_view key) {
  const std::optional<JsonView> value = line.find(key);
  return value ? std::optional(value->number()) : std::nullopt;
}

StepMetrics metrics_from(const JsonView& line) {
  StepMetrics metrics{.step = line.at("step").integer(),
                      .loss = number(line, "loss"),
                      .grad_norm = number(line, "grad_norm"),
                      .learning_rate = number(line, "lr"),
                      .tokens_per_second = number(line, "tokens_per_second"),
                      .loss_scale = optional_number(line, "loss_scale"),
                      .validation_loss = optional_number(line, "validation_loss"),
                      .tflops = optional_number(line, "tflops"),
                      .mfu = optional_number(line, "mfu")};
  if (line.find("memory_bytes")) metrics.memory = Bytes(line.at("memory_bytes").integer());
  return metrics;
}

int run(int argc, char** argv) {
  if (argc != 4) throw UserError("usage: tensorboard_tool FOLDER LAST_STEP WALL_TIME < metrics.jsonl");
  RealFileSystem files;
  Seconds wall_time(std::strtod(argv[3], nullptr));
  auto board = value_or_throw(TensorBoardFile::create(files, argv[1], wall_time, std::atoll(argv[2])));
  for (std::string line; std::getline(std::cin, line);) {
    const Json json = parse_json(line, "standard input");
    value_or_throw(board.append(metrics_from(JsonView(json, "standard input")), wall_time += Seconds(1)));
  }
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    return optimus::run(argc, argv);
  } catch (const optimus::ReportedError& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
