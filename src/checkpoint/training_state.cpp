// See training_state.h.
#include "checkpoint/training_state.h"

#include <cmath>

#include "base/json.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr const char* kFormat = "optimus-training-state";

// The format is {"layers": 4, "steps": 16, "maxima": {"layers.1.attention.qkv.input": [16 numbers, oldest
// first], …}}. fp8 slots whose amax was 0 in all steps are omitted.
OrderedJson history_json(const Fp8History& history) {
  OrderedJson maxima = OrderedJson::object();
  const std::size_t num_slots = history.steps.front().size();
  for (std::size_t slot = 0; slot < num_slots; ++slot) {
    if (history.maximum(static_cast<int>(slot)) == 0) continue;
    OrderedJson& row = maxima[fp8_slot_name(static_cast<int>(slot))] = OrderedJson::array();
    for (const std::vector<float>& step : history.steps) row.push_back(step[slot]);
  }
  return {{"layers", num_slots / kFp8SlotsOfLayer}, {"steps", history.steps.size()}, {"maxima", maxima}};
}

Fp8History parse_history(const JsonView& json) {
  static const std::string keys[] = {"layers", "steps", "maxima"};
  json.allow_only(keys);
  const auto num_steps = static_cast<std::size_t>(json.at("steps").integer(1, 1024));
  const auto num_slots = static_cast<std::size_t>(json.at("layers").integer(1, 100'000)) * kFp8SlotsOfLayer;
  if (num_steps * num_slots > std::size_t{1} << 24) json.refuse("an amax history for fewer steps or layers");
  Fp8History history;
  history.steps.assign(num_steps, std::vector<float>(num_slots));
  for (const auto& [name, row] : json.at("maxima").members()) {
    const int slot = fp8_slot_of(name);
    if (slot < 0 || slot >= static_cast<int>(num_slots))
      throw UserError("{}: {} is not an operand of an fp8 GEMM in a model with {} layers", json.location(),
                      in_quotes(name), num_slots / kFp8SlotsOfLayer);
    const std::vector<JsonView> values = row.elements();
    if (values.size() != num_steps) row.refuse(fmt::format("{} values, one per step", num_steps));
    for (std::size_t step = 0; step < num_steps; ++step) {
      const auto value = static_cast<float>(values[step].number());
      if (!std::isfinite(value) || value < 0) values[step].refuse("a non-negative number");
      history.steps[step][static_cast<std::size_t>(slot)] = value;
    }
  }
  return history;
}

OrderedJson ramp_json(const TrainingState& state) {
  return {{"gradient", state.noise.gradient},
          {"noise", state.noise.noise},
          {"moment", state.noise.moment},
          {"steps", state.noise.num_steps},
          {"begins", state.phase_begins}};
}

void parse_ramp(const JsonView& json, TrainingState& state) {
  static const std::string keys[] = {"gradient", "noise", "moment", "steps", "begins"};
  json.allow_only(keys);
  const auto finite = [&](const char* key) {
    const double value = json.at(key).number();
    if (!std::isfinite(value)) json.at(key).refuse("a finite number");
    return value;
  };
  state.noise = {finite("gradient"), finite("noise"), finite("moment"), json.at("steps").integer(0)};
  for (const JsonView& begin : json.at("begins").elements()) {
    const std::int64_t min_begin = state.phase_begins.empty() ? 1 : state.phase_begins.back() + 1;
    state.phase_begins.push_back(begin.integer(min_begin));
    if (state.phase_begins.size() > 64) begin.refuse("at most 64 phases");
  }
}

}  // namespace

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
  json["loss_scale"] = {{"value", state.loss_scale.value}, {"good_steps", state.loss_scale.num_good_steps}};
  if (!state.fp8.is_empty()) json["fp8"] = history_json(state.fp8);
  if (state.noise != NoiseScale{} || !state.phase_begins.empty()) json["ramp"] = ramp_json(state);
  return json.dump(1) + "\n";
}

TrainingState parse_training_state(std::string_view content, const std::string& source) {
  const Json document = parse_json(content, source);
  const JsonView view(document, source);
  if (view.at("format").text() != kFormat)
    throw UserError("{}: expected format {}, got {}", source, kFormat, in_quotes(view.at("format").text()));
  if (const std::int64_t version = view.at("version").integer(); version != kTrainingStateVersion)
    throw UserError("{}: training state version {} is not supported; this program reads version {}", source,
                    version, kTrainingStateVersion);
  static const std::string keys[] = {"format",     "version",   "step",       "updates", "samples", "seed",
                                     "plan_epoch", "precision", "loss_scale", "fp8",     "ramp"};
  static const std::string scale_keys[] = {"value", "good_steps"};
  view.allow_only(keys);
  TrainingState state;
  state.step = view.at("step").integer(0);
  state.num_updates = view.at("updates").integer(0);
  state.num_samples = view.at("samples").integer(0);
  state.seed = view.at("seed").integer();
  state.plan_epoch = view.at("plan_epoch").integer(0);
  const JsonView precision = view.at("precision"), scale = view.at("loss_scale");
  state.precision = parse_precision(precision.text(), precision.location());
  scale.allow_only(scale_keys);
  state.loss_scale.value = scale.at("value").number();
  if (!std::isfinite(state.loss_scale.value) || state.loss_scale.value <= 0)
    scale.at("value").refuse("a positive number");
  state.loss_scale.num_good_steps = scale.at("good_steps").integer(0);
  if (const auto fp8 = view.find("fp8")) state.fp8 = parse_history(*fp8);
  if (const auto ramp = view.find("ramp")) parse_ramp(*ramp, state);
  return state;
}

}  // namespace optimus
