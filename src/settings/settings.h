// Determines everything that a run needs from the options, before anything is started or written: the model,
// the tokenizer, the data, the plan, and values for all options that the user did not specify. Rejects
// invalid combinations of options.
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
  // The argument for open_tokenizer(). Empty if it is not known which tokenizer produced the tokens of the
  // data.
  std::string tokenizer_name;
  std::unique_ptr<Samples> samples;
  std::optional<StreamRange>
      validation;  // taken from the first data set; empty if that data set is too short
  Path origin;     // the model's source folder; empty for a preset
  std::string data_name;
  // There is one phase unless a ramp is given. Start steps that are decided at run time are in TrainingState.
  std::vector<Phase> phases;
  std::size_t first_phase = 0;      // the phase in which the run starts or resumes
  std::vector<Plan> phase_plans{};  // indexed by phase; filled for the phases after first_phase (phases.h)
  bool is_device_count_automatic = false;  // the number of devices was not given
  Plan plan;                               // of phase `first_phase`
  std::string plan_note;                   // the reason for this plan, if the planner chose it
  // One line with the reason for using fewer devices than are available; usually empty.
  std::string devices_note;
  std::int64_t steps = 0;
  LearningRate learning_rate;
  Path run;
};

// Sets the options that the user did not specify and records their origin in the table (which may be null). A
// resumed run takes its model and tokenizer from its checkpoint unless they are given again, and continues
// after `state.step`. Throws UserError or UsageError.
TrainSettings resolve(TrainOptions& options, const DeviceFacts& device, OptionTable* table, EventSink& events,
                      const std::optional<Path>& checkpoint = {}, const TrainingState& state = {});

// resolve_custom() resolves the plan, the number of steps, the learning rate and the run folder for a model
// that consists of torch modules. The caller provides the data and the modules, so options for text or tokens
// are rejected. resolve_precision() must be called first, because the modules are measured with this
// precision.
Precision resolve_precision(TrainOptions& options, const DeviceFacts& device, OptionTable* table);
TrainSettings resolve_custom(TrainOptions& options, ModelSpec model, std::int64_t num_samples);

}  // namespace optimus
