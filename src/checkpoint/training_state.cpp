// See training_state.h.
#include "checkpoint/training_state.h"

#include <cmath>

#include "base/json.h"
#include "base/text.h"

namespace optimus {
namespace {
constexpr const char* kFormat = "optimus-training-state";
}

std::string training_state_text(const TrainingState& state) {
  OrderedJson json;
  json["format"] = kFormat;
  json["version"] = kTrainingStateVersion;
  json["step"] = state.step;
  json["updates"] = state.num_updates;
  json["samples"] = state.num_samples;
  json["seed"] = state.seed;
  json["plan_epoch"] = state.plan_epoch;
  json["precision"] = text(state.precision);
  json["loss_scale"] = {{"value", state.loss_scale.value}, {"good_steps", state.loss_scale.num_good}};
  return json.dump(1) + "\n";
}

TrainingState parse_training_state(std::string_view content, const std::string& source) {
  const Json document = parse_json(content, source);
  const JsonView view(document, source);
  if (view.at("format").text() != kFormat)
    throw UserError("{}: format {} is not {}", source, in_quotes(view.at("format").text()), kFormat);
  if (const std::int64_t version = view.at("version").integer(); version != kTrainingStateVersion)
    throw UserError("{}: training state version {}; this program reads version {}", source, version,
                    kTrainingStateVersion);
  static const std::string keys[] = {"format", "version",    "step",      "updates",   "samples",
                                     "seed",   "plan_epoch", "precision", "loss_scale"};
  static const std::string scale_keys[] = {"value", "good_steps"};
  view.allow_only(keys);
  TrainingState state;
  state.step = view.at("step").integer(0);
  state.num_updates = view.at("updates").integer(0);
  state.num_samples = view.at("samples").integer(0);
  state.seed = view.at("seed").integer();
  state.plan_epoch = view.at("plan_epoch").integer(0);
  const JsonView precision = view.at("precision"), scale = view.at("loss_scale");
  state.precision = parse_precision(precision.text(), precision.where());
  scale.allow_only(scale_keys);
  state.loss_scale.value = scale.at("value").number();
  if (!std::isfinite(state.loss_scale.value) || state.loss_scale.value <= 0)
    scale.at("value").refuse("a positive number");
  state.loss_scale.num_good = scale.at("good_steps").integer(0);
  return state;
}

}  // namespace optimus
