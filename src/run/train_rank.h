// The part of a training that every rank runs, in whatever process it is: its parameters, its engine, its
// steps. Decisions for all ranks are made before, in prepare_run.
#pragma once

#include <vector>

#include "base/event.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/small_file.h"
#include "run/rank_context.h"
#include "rundir/train_result.h"
#include "settings/run_spec.h"

namespace optimus {

DeviceFacts facts_of(at::Device device);
// The same, with the number of devices that a run on this machine uses by default.
DeviceFacts all_device_facts(at::Device device, const TrainOptions& options);
// The same for the device that the options name. Must be called before this run allocates on it, because free
// memory counts.
DeviceFacts named_device_facts(const TrainOptions& options);

// Resumes or starts a run: fills in the options that were left open and rejects invalid ones. Writes nothing
// except the folder itself. If no number of devices is given, it is the number of available devices with
// `has_workers`, else one.
RunSpec prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                    bool has_workers);

// The description of the model for a Hugging Face folder.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// What a checkpoint contains besides tensors and state.json: the model, its tokenizer, and the run's
// settings.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// The number of ranks that the run needs: for its devices, its plan, and the plans that it will switch to.
int num_ranks(const RunSpec& spec);

// The run's folder must contain its settings and plan. Rank 0 keeps the records, and its result is the result
// of the run. Throws ExcludedFromRun.
TrainResult train_rank(const RunSpec& spec, const RankContext& rank);

}  // namespace optimus
