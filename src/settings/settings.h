// From options to everything that a run needs, before anything is started or written: the model, its tokenizer and data, the
// plan, numbers for all that was left open. What cannot work is refused here.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>

#include "base/event.h"
#include "checkpoint/open_model.h"
#include "checkpoint/training_state.h"
#include "data/samples.h"
#include "plan/phase.h"
#include "plan/plan.h"
#include "settings/learning_rate.h"
#include "settings/options.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

struct TrainSettings {
  ModelSpec model;
  std::unique_ptr<WeightSource> weights;  // to start from; null: random ones
  std::unique_ptr<Tokenizer> tokenizer;
  // As open_tokenizer() takes it; empty when it is not known whose the data's tokens are.
  std::string tokenizer_name;
  std::unique_ptr<Samples> samples;
  std::optional<StreamRange> validation;  // of the first data set; nothing when it is too short
  Path origin;                            // the folder that the model came from; empty for a preset
  std::string data_name;
  std::vector<Phase>
      phases;  // one, where nothing grows; begins that are decided while it runs: TrainingState
  std::size_t first_phase = 0;      // that the run begins with, or goes on in
  std::vector<Plan> phase_plans{};  // [phase] behind that one (phases.h)
  bool are_devices_free = false;    // nobody has said how many
  Plan plan;                        // of the first phase
  std::string plan_note;            // why this plan, where the planner chose it
  std::string devices_note;         // why there are fewer devices than could be; one line, mostly empty
  std::int64_t steps = 0;
  LearningRate learning_rate;
  Path run;
};

// What the device is like, as far as choices depend on it.
struct DeviceFacts {
  bool is_gpu = false;
  std::string type = "cpu";          // as standard clusters name it
  int count = 1;                     // that are used when nobody says how many
  std::optional<Bytes> memory{};     // of one GPU; of a processor what its workers share
  std::optional<int> num_sharing{};  // workers on this processor; unless told all
  std::optional<Bytes> memory_of_each(int num_devices) const {
    return memory && !is_gpu ? Bytes(memory->value / std::max(1, num_sharing.value_or(num_devices))) : memory;
  }
};

// Fills in the options that were left open and tells the table where they came from (table may be null). A resumed run has
// its model and tokenizer from its checkpoint, unless they were named anew, and stands behind `state`. Throws UserError or UsageError.
TrainSettings resolve(TrainOptions& options, const DeviceFacts& device, OptionTable* table, EventSink& events,
                      const std::optional<Path>& checkpoint = {}, const TrainingState& state = {});

// The same for a model of custom blocks: plan, steps, learning rate and folder. Its data and its blocks are the caller's, so
// options that speak of text or tokens are refused. The precision comes first, because blocks are measured in it.
Precision resolve_precision(TrainOptions& options, const DeviceFacts& device, OptionTable* table);
TrainSettings resolve_custom(TrainOptions& options, ModelSpec model, std::int64_t num_samples);

}  // namespace optimus
