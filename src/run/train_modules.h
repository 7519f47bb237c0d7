// Trains models that are not transformers. Such a model is a sequence of torch modules, and the caller
// provides the samples.
//
//   optimus::ModuleModel model{.name = "net", .loss = …};
//   model.add("conv1", torch::nn::Conv2d(1, 8, 3));  …
//   optimus::TrainResult result = optimus::train(model, {.num_samples = 60000, .read = …}, {.steps = 500});
//
// Training starts from the current values of the modules. They contain the trained values when train()
// returns or throws. All training options (settings/options.h) apply, except those about text; `batch` is a
// number of samples. Precision, clipping, learning rate, recompute (none or full) and the run folder work as
// for text models. With `devices`, several ranks train as threads, each with a copy of the modules and its
// share of each batch. `layout.zero` shards the state over the ranks. The data is then read by several
// threads at a time. The plan may change during the run, through `switch_at` or `optimus switch RUN --plan
// FILE`. The reported loss is the mean over samples. Like train(model, data), throws UserError.
// engine/module_model.h specifies which modules are allowed.
#pragma once

#include "engine/module_model.h"
#include "rundir/train_result.h"
#include "settings/options.h"

namespace optimus {

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options = {});

}  // namespace optimus
