// The part of a training that every rank runs, whether it is a thread or a process: its parameters, its
// engine, its steps. Decisions for all ranks are made before that, in prepare_run().
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
// As facts_of(), with the number of devices that a run on this machine uses by default.
DeviceFacts all_device_facts(at::Device device, const TrainOptions& options);
// As all_device_facts(), for the device that the options name. Must be called before this run allocates
// memory on it, because the result includes the free memory.
DeviceFacts named_device_facts(const TrainOptions& options);

// Resumes or starts a run: fills in the options that were left open and rejects invalid ones. Writes
// nothing except the folder itself. If no number of devices is given, all available devices are used if
// `has_workers`, else one.
RunSpec prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                    bool has_workers);

// The description of the model that is written to a Hugging Face folder.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// The files that a checkpoint contains in addition to tensors and state.json: the model, its tokenizer, the
// plan, and the run's settings.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// The number of ranks that the run needs: for its devices, its plan, and the plans that it will switch to.
int num_ranks(const RunSpec& spec);

// The run's folder must contain its settings and plan. Rank 0 writes the records, and its result is the
// result of the run. Throws ExcludedFromRun.
TrainResult train_rank(const RunSpec& spec, const RankContext& rank);

}  // namespace optimus
