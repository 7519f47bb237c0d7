// Trains models that are not transformers: a sequence of torch modules, on samples that the caller provides.
//
//   optimus::ModuleModel model{.name = "net", .loss = …};
//   model.add("conv1", torch::nn::Conv2d(1, 8, 3));  …
//   optimus::TrainResult result = optimus::train(model, {.num_samples = 60000, .read = …}, {.steps = 500});
//
// The modules start from their current values and contain the trained values when train() returns or throws.
// The options are those of every training (settings/options.h) except those about text; `batch` counts
// samples. Precision, clipping, learning rate, recompute (none or full) and the run folder work as for text
// models. With `devices`, several ranks train as threads, each with a copy of the modules and its share of
// each batch; `layout.zero` shards the state over them. The data is then read by several threads at a time.
// The plan may change during the run, through `switch_at` or `optimus switch RUN --plan FILE`. The reported
// loss is the mean over samples. Throws UserError as train(model, data) does; engine/module_model.h specifies
// which modules are allowed.
#pragma once

#include "engine/module_model.h"
#include "rundir/train_result.h"
#include "settings/options.h"

namespace optimus {

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options = {});

}  // namespace optimus
