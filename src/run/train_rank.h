// The part of a training that every rank does, in whatever process it is: its parameters, its engine, the steps. What is decided
// once for all ranks comes before (prepare_run).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/event.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/small_file.h"
#include "comm/comm.h"
#include "elastic/regroup.h"
#include "engine/step_beacon.h"
#include "observe/status_line.h"
#include "run/train_result.h"
#include "settings/options.h"
#include "rundir/board.h"
#include "settings/resume.h"
#include "settings/settings.h"
#include "switching/plan_switches.h"
#include "switching/step_agreement.h"

namespace optimus {

DeviceFacts facts_of(at::Device device);
// With as many as a run on this machine takes by itself.
DeviceFacts facts_of_all(at::Device device, const TrainOptions& options);
// The same of the device that the options name. What is free counts, so: before this run has anything on it.
DeviceFacts facts_of_own(const TrainOptions& options);

struct PreparedRun {
  ResumedRun resumed;  // its lock is held by the process that prepares, for as long as the run lasts
  TrainSettings settings;
  std::vector<ScriptedSwitch> script{};
};
// Resumes or begins, fills in what was left open, refuses what cannot work. Writes nothing but the folder itself. Where nobody said
// how many devices: as many as there are when ranks are worker processes, else one.
PreparedRun prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                        bool has_workers);

// How a rank goes on when others are lost, come or leave (regroup.h).
struct RankElastic {
  int seat = 0;
  std::function<bool()> leaves;                        // whether this rank was told to go
  std::function<bool()> wants_to_meet;                 // because somebody comes, or this rank leaves
  std::function<void(const RegroupOrder&)> regrouped;  // before it does
  std::function<void()> speak_to_people;               // it keeps the records from here on
  StepBeacon* beacon = nullptr;                        // where its engine shows how far it is
  std::optional<RegroupOrder> order{};                 // it comes to a run: the order that it begins with
};

struct RankPart {
  Comm& comm;
  at::Device device;
  int threads = 1;
  EventSink& events;
  StatusLine& line;
  StepAgreement& agreement;
  std::function<bool()> is_asked;  // whether this rank is asked to end, together with the others
  // When the training has failed: where ranks meet beside their groups. None: nothing is saved then.
  std::function<std::unique_ptr<Board>()> open_board{};
  const RankElastic* elastic = nullptr;  // none: it fails with the others
};
// Of the folder that Hugging Face's programs open.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// What a checkpoint holds beside tensors and state.json: the model, its tokenizer, how the run ran.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// How many ranks the run needs: for its devices, its plan, and those that it will go on with.
int num_ranks(const TrainOptions& options, const PreparedRun& run);

// The run's folder has its settings and plan. Rank 0 keeps the records; its result is the run's. Throws LeftBehind.
TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part);

}  // namespace optimus
