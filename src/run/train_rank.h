// The part of a training that every rank runs, whether it is a thread or a process: its parameters, its
// engine, its steps. Decisions for all ranks are made before that, in prepare_run().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/event.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/small_file.h"
#include "comm/comm.h"
#include "elastic/membership_change.h"
#include "engine/step_heartbeat.h"
#include "observe/status_line.h"
#include "run/train_result.h"
#include "rundir/board.h"
#include "settings/options.h"
#include "settings/resume.h"
#include "settings/settings.h"
#include "switching/plan_switch_controller.h"
#include "switching/step_agreement.h"

namespace optimus {

DeviceFacts facts_of(at::Device device);
// As facts_of(), with the number of devices that a run on this machine uses by default.
DeviceFacts all_device_facts(at::Device device, const TrainOptions& options);
// As all_device_facts(), for the device that the options name. Must be called before this run allocates
// memory on it, because the result includes the free memory.
DeviceFacts named_device_facts(const TrainOptions& options);

struct PreparedRun {
  ResumedRun resumed;  // its lock is held by the preparing process for the duration of the run
  TrainSettings settings;
  std::vector<ScriptedSwitch> script{};
};
// Resumes or starts a run: fills in the options that were left open and rejects invalid ones. Writes
// nothing except the folder itself. If no number of devices is given, all available devices are used if
// `has_workers`, else one.
PreparedRun prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                        bool has_workers);

// The elastic side of a rank: how it continues when other ranks are lost, join or leave
// (membership_change.h).
struct RankElastic {
  int worker_id = 0;
  std::function<bool()> leaves;  // whether this rank was asked to leave
  // Whether a membership change is requested because a worker joins or this rank leaves.
  std::function<bool()> wants_membership_change;
  std::function<void(const MembershipChange&)> membership_changed;  // called before the membership changes
  std::function<void()> switch_to_console;  // called when this rank becomes the reporting rank
  StepHeartbeat* step_heartbeat = nullptr;  // where the engine reports its progress
  std::optional<MembershipChange> order{};  // the first order of a worker that joins a running training
};

struct RankPart {
  Comm& comm;
  at::Device device;
  int threads = 1;
  EventSink& events;
  StatusLine& line;
  StepAgreement& agreement;
  std::function<bool()> is_end_requested;  // whether this rank is asked to end together with all other ranks
  // Opens the key-value board through which ranks communicate after a failure, when their groups are
  // broken. If null, nothing is saved after a failure.
  std::function<std::unique_ptr<Board>()> open_board{};
  const RankElastic* elastic = nullptr;  // null if the rank fails when another rank fails
};
// The description of the model that is written to a Hugging Face folder.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// The files that a checkpoint contains in addition to tensors and state.json: the model, its tokenizer, the
// plan, and the run's settings.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// The number of ranks that the run needs: for its devices, its plan, and the plans that it will switch to.
int num_ranks(const TrainOptions& options, const PreparedRun& run);

// The run's folder must contain its settings and plan. Rank 0 writes the records, and its result is the
// result of the run. Throws ExcludedFromRun.
TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part);

}  // namespace optimus
