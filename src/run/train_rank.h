// The part of a training that every rank runs, whether the rank is a thread or a process: parameters, engine
// and steps. prepare_run() has already made the decisions that concern all ranks.
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
// Like facts_of(), but includes the number of devices that a run on this machine uses by default.
DeviceFacts all_device_facts(at::Device device, const TrainOptions& options);
// Like all_device_facts(), but for the device named in the options. Must be called before this run allocates
// memory on the device, because the result includes the free memory.
DeviceFacts named_device_facts(const TrainOptions& options);

// Resumes or starts a run. Fills in the options that were not set and rejects invalid options. Creates the
// run folder but writes nothing to it. If the number of devices is not set, uses all available devices if
// `has_workers` is true, and one device otherwise.
RunSpec prepare_run(TrainOptions& options, OptionTable* table, FileSystem& files, EventSink& events,
                    bool has_workers);

// Returns the model description that is written to a Hugging Face folder.
HfDescription description_of(const TrainSettings& settings, ElementType type);
// Returns the files that a checkpoint contains in addition to tensors and state.json: the model, its
// tokenizer, the plan, and the run's settings.
inline constexpr const char* kPlanFile = "plan.json";
std::vector<SmallFile> small_files(const TrainSettings& settings);
// Returns the number of ranks that the run needs for its devices, its plan, and the plans to which it will
// switch.
int num_ranks(const RunSpec& spec);

// Trains as one rank. The run folder must contain the settings and the plan. Rank 0 writes the records and
// returns the result of the run. Throws ExcludedFromRun.
TrainResult train_rank(const RunSpec& spec, const RankContext& rank);

}  // namespace optimus
