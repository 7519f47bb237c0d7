// Implements --profile, which records a few steps of a run in detail. Each rank records the start and end of
// its instructions and its memory use in RUN/profile/rank-N.json. Rank 0 merges all ranks into one Perfetto
// trace and prints the times next to the predictions. report/profile_report.h defines the format of the
// results.
//
// Every rank that the plan uses calls the Profiler at the same steps. A failed write only causes a warning.
#pragma once

#include "base/event.h"
#include "base/file.h"
#include "engine/engine.h"
#include "observe/status_line.h"
#include "report/profile_report.h"
#include "run/rank_agreement.h"

namespace optimus {

struct ProfileOptions {
  Path file, run;
  std::int64_t completed_steps = 0, steps = 0;  // of the run; `steps` is the total number of steps
};

class Profiler {
 public:
  // All objects passed by reference must outlive this object.
  Profiler(ProfileOptions options, const Plan& plan, const ModelSpec& model, Engine& engine,
           const Parameters& parameters, Agreement ranks, EventSink& events, StatusLine& line);

  // Called before and after every step. Steps are numbered from 1.
  void before_step(std::int64_t step);
  void after_step(std::int64_t step);

 private:
  void begin();
  void finish();
  void merge_ranks();

  const ProfileOptions options_;
  const Plan& plan_;
  const ModelSpec& model_;
  Engine& engine_;
  const Parameters& parameters_;
  const Agreement ranks_;
  EventSink& events_;
  StatusLine& line_;
  std::int64_t first_step_, last_step_;  // the recorded steps
  InstructionLog log_;
  RankProfile profile_;
};

}  // namespace optimus
