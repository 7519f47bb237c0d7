// The one call for models that are no transformers: trains a row of torch modules on samples that the caller makes.
//
//   optimus::ModuleModel model{.name = "net", .loss = …};
//   model.add("conv1", torch::nn::Conv2d(1, 8, 3));  …
//   optimus::TrainResult done = optimus::train(model, {.num_samples = 60000, .read = …}, {.steps = 500});
//
// The modules start from the values they have and hold the trained ones when train returns, also when it ends by an exception.
// Options are those of every training (settings/options.h), as far as they do not speak of text; `batch` counts samples. Precision,
// clipping, learning rate, recompute (none or full) and the run folder are as there. With `devices` as many ranks train as threads,
// each with a copy of the modules and its share of each batch; `layout.zero` shares the state out among them. Data is then read by
// several threads at a time. The plan may change on the way, by `switch_at` or by `optimus switch RUN --plan FILE`. The loss that is
// reported is the mean over samples. Throws UserError as train(model, data) does; engine/module_model.h says what a part may do.
#pragma once

#include "engine/module_model.h"
#include "run/train_result.h"
#include "settings/options.h"

namespace optimus {

TrainResult train(const ModuleModel& model, const ModuleData& data, TrainOptions options = {});

}  // namespace optimus
