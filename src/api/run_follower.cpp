// Implements run_follower.h.
#include "api/run_follower.h"

#include <sys/stat.h>

#include <fstream>

#include "observe/decisions.h"
#include "observe/metrics_read.h"

namespace optimus {
namespace {

PlanEvent event_of(const Decision& decision) {
  return {.step = decision.step,
          .kind = decision.kind,
          .evidence = decision.evidence,
          .from = decision.from,
          .to = decision.to,
          .plan_epoch = decision.epoch,
          .predicted_gain = decision.predicted_gain,
          .measured_gain = decision.measured_gain,
          .pause_seconds = decision.pause.value,
          .moved_bytes = decision.moved.value};
}

}  // namespace

LineFollower::LineFollower(Path path) : path_(std::move(path)) {
  struct stat file_status {};
  if (::stat(path_.c_str(), &file_status) == 0) inode_ = file_status.st_ino, offset_ = file_status.st_size;
}

std::vector<std::string> LineFollower::take() {
  struct stat file_status {};
  std::vector<std::string> lines;
  if (::stat(path_.c_str(), &file_status) != 0) return lines;
  if (file_status.st_ino != inode_ || file_status.st_size < offset_) inode_ = file_status.st_ino, offset_ = 0;
  if (file_status.st_size == offset_) return lines;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(offset_);
  for (std::string line; std::getline(file, line) && !file.eof(); offset_ += std::ssize(line) + 1)
    lines.push_back(line);
  return lines;
}

RunFollower::RunFollower(const Path& run, std::int64_t last_step)
    : steps_(run / "metrics.jsonl"), plans_(run / "decisions.jsonl"), last_step_(last_step) {}

std::vector<StepEvent> RunFollower::take_steps() {
  std::vector<StepEvent> events;
  for (const std::string& line : steps_.take())
    for (const StepMetrics& step_metrics : parse_metrics(line + "\n", "metrics.jsonl")) {
      if (step_metrics.step <= last_step_) continue;
      last_step_ = step_metrics.step;
      events.push_back({.step = step_metrics.step,
                        .loss = step_metrics.loss,
                        .grad_norm = step_metrics.grad_norm,
                        .learning_rate = step_metrics.learning_rate,
                        .tokens = step_metrics.tokens,
                        .seconds = step_metrics.seconds.value,
                        .tokens_per_second = step_metrics.tokens_per_second,
                        .plan_epoch = step_metrics.epoch,
                        .is_skipped = step_metrics.is_skipped,
                        .validation_loss = step_metrics.validation_loss});
    }
  return events;
}

std::vector<PlanEvent> RunFollower::take_plans() {
  std::vector<PlanEvent> events;
  for (const std::string& line : plans_.take())
    for (const Decision& decision : parse_decisions(line + "\n", "decisions.jsonl"))
      events.push_back(event_of(decision));
  return events;
}

}  // namespace optimus
