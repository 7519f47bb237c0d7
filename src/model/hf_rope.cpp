// See hf_rope.h.
#include "model/hf_rope.h"

#include "base/error.h"
#include "base/text.h"

namespace optimus {
namespace {

constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;

RopeScalingKind read_kind(const JsonView& settings) {
  const auto type = settings.find("rope_type"), old_type = settings.find("type");
  if (type && old_type && type->text() != old_type->text())
    throw UserError("{} and {} differ; keep one of them", type->location(), old_type->location());
  if (!type && !old_type) return RopeScalingKind::none;
  const JsonView& kind = type ? *type : *old_type;
  if (kind.text() == "default") return RopeScalingKind::none;
  if (kind.text() == "linear") return RopeScalingKind::linear;
  if (kind.text() == "llama3") return RopeScalingKind::llama3;
  throw UserError("{}: expected default, linear or llama3, got {}", kind.location(), in_quotes(kind.text()));
}

// Throws a UserError for keys that would change the rotation in an unsupported way.
void allow_keys_of(const JsonView& settings, RopeScalingKind kind) {
  std::vector<std::string> known_names = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  if (kind != RopeScalingKind::none) known_names.push_back("factor");
  if (kind == RopeScalingKind::llama3)
    for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      known_names.push_back(key);
  settings.allow_only(known_names);
  const auto rotary_factor = settings.find("partial_rotary_factor");
  if (rotary_factor && rotary_factor->number() != 1)
    throw UserError("{}: expected 1 or an absent key, got {} (not supported)", rotary_factor->location(),
                    rotary_factor->number());
}

RopeSettings read_settings(const JsonView& settings, double outer_theta, std::int64_t max_positions) {
  RopeSettings rope;
  rope.scaling.kind = read_kind(settings);
  allow_keys_of(settings, rope.scaling.kind);
  rope.theta = settings.number_or("rope_theta", outer_theta);
  if (rope.scaling.kind == RopeScalingKind::none) return rope;
  rope.scaling.factor = settings.at("factor").number();
  if (rope.scaling.kind == RopeScalingKind::linear) return rope;
  rope.scaling.low_freq_factor = settings.at("low_freq_factor").number();
  rope.scaling.high_freq_factor = settings.at("high_freq_factor").number();
  const auto original = settings.find("original_max_position_embeddings");
  rope.scaling.original_max_positions = original ? original->integer(1, kMaxPositions) : max_positions;
  return rope;
}

// transformers treats an empty object as absent.
std::optional<JsonView> find_non_empty(const JsonView& config, std::string_view key) {
  const auto value = config.find(key);
  return value && value->raw().is_object() && value->raw().empty() ? std::nullopt : value;
}

}  // namespace

RopeSettings read_hf_rope(const JsonView& config, std::int64_t max_positions, double default_theta) {
  const auto theta = config.find("rope_theta");
  const double outer_theta = theta ? theta->number() : default_theta;
  const auto scaling = find_non_empty(config, "rope_scaling"),
             parameters = find_non_empty(config, "rope_parameters");
  if (!scaling && !parameters) return {outer_theta, {}};
  const RopeSettings rope = read_settings(scaling ? *scaling : *parameters, outer_theta, max_positions);
  if (scaling && parameters && !(read_settings(*parameters, outer_theta, max_positions) == rope))
    throw UserError("{}: rope_scaling and rope_parameters differ; keep one of them", config.location());
  if (theta && rope.theta != outer_theta)
    throw UserError("{} is {}, but {} has {}; keep one of them", theta->location(), outer_theta,
                    scaling ? "rope_scaling" : "rope_parameters", rope.theta);
  return rope;
}

void write_hf_rope(OrderedJson& config, const RopeSettings& rope) {
  OrderedJson scaling;
  switch (rope.scaling.kind) {
    case RopeScalingKind::none:
      break;
    case RopeScalingKind::linear:
      scaling = {{"rope_type", "linear"}, {"factor", rope.scaling.factor}};
      break;
    case RopeScalingKind::llama3:
      scaling = {{"rope_type", "llama3"},
                 {"factor", rope.scaling.factor},
                 {"low_freq_factor", rope.scaling.low_freq_factor},
                 {"high_freq_factor", rope.scaling.high_freq_factor},
                 {"original_max_position_embeddings", rope.scaling.original_max_positions}};
      break;
  }
  OrderedJson parameters = scaling;
  if (scaling.is_null()) parameters["rope_type"] = "default";
  parameters["rope_theta"] = rope.theta;
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = scaling;
  config["rope_parameters"] = parameters;
}

}  // namespace optimus
