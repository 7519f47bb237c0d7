// --profile: looks at a few steps of a run closely. Each rank notes when its instructions began and ended and what memory it holds
// (RUN/profile/rank-N.json); rank 0 puts all ranks on one clock into a file for Perfetto and prints them beside the prediction.
// What the figures look like is report/profile_report.h.
//
// Every rank of the plan calls at the same steps. That nothing could be written is a warning: training goes on.
#pragma once

#include "base/event.h"
#include "base/file.h"
#include "engine/engine.h"
#include "observe/status_line.h"
#include "report/profile_report.h"
#include "run/agree.h"

namespace optimus {

struct ProfileOptions {
  Path file, run;
  std::int64_t done = 0, steps = 0;  // of the run: done already, to be done
};

class Profiler {
 public:
  // All that is referred to must outlive this.
  Profiler(ProfileOptions options, const Plan& plan, const ModelSpec& model, Engine& engine,
           const Parameters& parameters, Agreement ranks, EventSink& events, StatusLine& line);

  // Around every step; steps count from 1.
  void before(std::int64_t step);
  void after(std::int64_t step);

 private:
  void begin();
  void finish();
  void put_together();

  const ProfileOptions options_;
  const Plan& plan_;
  const ModelSpec& model_;
  Engine& engine_;
  const Parameters& parameters_;
  const Agreement ranks_;
  EventSink& events_;
  StatusLine& line_;
  std::int64_t first_, last_;  // steps that are looked at
  InstructionLog log_;
  RankProfile profile_;
};

}  // namespace optimus
