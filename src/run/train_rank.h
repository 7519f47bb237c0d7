// The part of a training that every rank runs, in whatever process it is: its parameters, its engine, its
// steps. Decisions for all ranks are made before, in prepare_run.
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
// The same, with the number of devices that a run on this machine uses by default.
DeviceFacts all_device_facts(at::Device device, const TrainOptions& options);
// The same for the device that the options name. Must be called before this run allocates on it, because free
// memory counts.
DeviceFacts named_device_facts(const TrainOptions& options);

struct PreparedRun {
  ResumedRun resumed;  // its lock is held by the preparing process for the duration of the run
  TrainSettings settings;
  std::vector<ScriptedSwitch> script{};
};
// Resumes or starts a run: fills in the options that were left open and rejects invalid ones. Writes nothing
// except the folder itself. If no number of devices is given, it is the number of available devices with
// `has_workers`, else one.
PreparedRun prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                        bool has_workers);

// The elastic side of a rank: how it continues when others are lost, join or leave (membership_change.h).
struct RankElastic {
  int worker_id = 0;
  std::function<bool()> leaves;  // whether this rank was asked to leave
  // whether a membership change is requested: a worker joins, or this rank leaves
  std::function<bool()> wants_membership_change;
  std::function<void(const MembershipChange&)> membership_changed;  // called before the membership changes
  std::function<void()> switch_to_console;  // called when this rank becomes the reporting rank
  StepHeartbeat* step_heartbeat = nullptr;  // where its engine reports its progress
  std::optional<MembershipChange> order{};  // the first order of a worker that joins a running training
};

struct RankPart {
  Comm& comm;
  at::Device device;
  int threads = 1;
  EventSink& events;
  StatusLine& line;
  StepAgreement& agreement;
  std::function<bool()> is_end_requested;  // whether this rank is asked to end, together with the others
  // Opens the key-value board on which ranks meet outside their groups after a failure. Null: nothing is
  // saved then.
  std::function<std::unique_ptr<Board>()> open_board{};
  const RankElastic* elastic = nullptr;  // null: it fails with the others
};
// The description of the model for a Hugging Face folder.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// What a checkpoint contains besides tensors and state.json: the model, its tokenizer, and the run's
// settings.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// The number of ranks that the run needs: for its devices, its plan, and the plans that it will switch to.
int num_ranks(const TrainOptions& options, const PreparedRun& run);

// The run's folder must contain its settings and plan. Rank 0 keeps the records, and its result is the result
// of the run. Throws ExcludedFromRun.
TrainResult train_rank(const PreparedRun& run, const TrainOptions& options, const RankPart& part);

}  // namespace optimus
