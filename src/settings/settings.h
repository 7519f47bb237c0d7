// Resolves the options to everything that a run needs, before anything is started or written: the model, its
// tokenizer and data, the plan, and values for all options that the user did not give. Invalid combinations
// are rejected here.
#pragma once

#include <memory>
#include <optional>

#include "base/event.h"
#include "checkpoint/open_model.h"
#include "checkpoint/training_state.h"
#include "data/samples.h"
#include "plan/phase.h"
#include "plan/plan.h"
#include "settings/device_facts.h"
#include "settings/learning_rate.h"
#include "settings/options.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

struct TrainSettings {
  ModelSpec model;
  std::unique_ptr<WeightSource> weights;  // initial weights; null if they are random
  std::unique_ptr<Tokenizer> tokenizer;
  // The argument of open_tokenizer(); empty if it is unknown which tokenizer produced the data's tokens.
  std::string tokenizer_name;
  std::unique_ptr<Samples> samples;
  std::optional<StreamRange> validation;  // taken from the first data set; empty if that is too short
  Path origin;                            // the model's source folder; empty for a preset
  std::string data_name;
  // One phase unless a ramp is given; start steps that are decided at run time are in TrainingState.
  std::vector<Phase> phases;
  std::size_t first_phase = 0;      // the phase in which the run starts or resumes
  std::vector<Plan> phase_plans{};  // indexed by phase; filled for the phases after first_phase (phases.h)
  bool is_device_count_automatic = false;  // the number of devices was not given
  Plan plan;                               // of phase `first_phase`
  std::string plan_note;                   // the reason for this plan, if the planner chose it
  // One line with the reason why fewer devices are used than are available; usually empty.
  std::string devices_note;
  std::int64_t steps = 0;
  LearningRate learning_rate;
  Path run;
};

// Fills in the options that the user did not give and records their origin in the table (which may be null).
// A resumed run takes its model and tokenizer from its checkpoint unless they are given again, and starts
// after `state.step`. Throws UserError or UsageError.
TrainSettings resolve(TrainOptions& options, const DeviceFacts& device, OptionTable* table, EventSink& events,
                      const std::optional<Path>& checkpoint = {}, const TrainingState& state = {});

// resolve_custom() does the same for a model that consists of torch modules: it resolves plan, steps,
// learning rate and folder. The caller provides data and modules, so options about text or tokens are
// rejected. resolve_precision() must be called first, because the modules are measured in this precision.
Precision resolve_precision(TrainOptions& options, const DeviceFacts& device, OptionTable* table);
TrainSettings resolve_custom(TrainOptions& options, ModelSpec model, std::int64_t num_samples);

}  // namespace optimus
