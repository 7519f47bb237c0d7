// Formats the profile of a model as JSON and as a table.
#include <fmt/format.h>

#include "base/text.h"
#include "base/units.h"
#include "model/profile.h"

namespace optimus {
namespace {

constexpr RecomputeMode kRecomputeModes[] = {RecomputeMode::none, RecomputeMode::selective,
                                             RecomputeMode::full};

OrderedJson by_mode(const std::array<double, 3>& bytes) {
  OrderedJson result;
  for (const RecomputeMode mode : kRecomputeModes) result[text(mode)] = bytes[static_cast<std::size_t>(mode)];
  return result;
}

OrderedJson state_json(std::int64_t parameters, StateBytes per_parameter) {
  return {{"weights", parameters * per_parameter.weight},
          {"gradients", parameters * per_parameter.gradient},
          {"optimizer", parameters * per_parameter.optimizer},
          {"total", parameters * per_parameter.total()}};
}

std::string name_of(const BlockProfile& block) { return block.is_mixture ? "mixture" : text(block.kind); }

OrderedJson block_json(const BlockProfile& block) {
  OrderedJson result;
  result["kind"] = name_of(block);
  result["count"] = block.count;
  result["parameters"] = block.parameters;
  result["state_bytes"] = {{"bf16", state_json(block.parameters, kBf16State)},
                           {"fp32", state_json(block.parameters, kFp32State)}};
  result["flops_per_token"] = {{"forward", block.forward_flops},
                               {"backward", block.backward_flops},
                               {"repeated", block.attention_recompute_flops}};
  result["kept_bytes_per_token"] = {{"bf16", by_mode(block.saved_bytes_bf16)},
                                    {"fp32", by_mode(block.saved_bytes_fp32)}};
  result["tensor_parallel"] = {{"parameters", block.split_parameter_fraction},
                               {"flops", block.split_flops_fraction},
                               {"kept", block.split_saved_fraction},
                               {"most_parts", block.max_parts}};
  return result;
}

// The sum of `saved` over all blocks, in bytes per token, indexed by RecomputeMode.
std::array<double, 3> total_saved(const ModelProfile& profile, std::array<double, 3> BlockProfile::*saved) {
  std::array<double, 3> total{};
  for (const BlockProfile& block : profile.blocks)
    for (std::size_t mode = 0; mode < total.size(); ++mode)
      total[mode] += static_cast<double>(block.count) * (block.*saved)[mode];
  return total;
}

double total_flops(const ModelProfile& profile, double BlockProfile::*flops) {
  double total = 0;
  for (const BlockProfile& block : profile.blocks) total += static_cast<double>(block.count) * block.*flops;
  return total;
}

std::string bytes_text(double bytes) { return text(Bytes(static_cast<std::int64_t>(bytes))); }
std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

std::int64_t num_mixture_layers(const ModelProfile& profile) {
  std::int64_t count = 0;
  for (const BlockProfile& block : profile.blocks) count += block.is_mixture ? block.count : 0;
  return count;
}

std::string heads_text(const ModelSpec& spec) {
  if (spec.kv_heads == spec.heads) return fmt::format("{} heads of {}", spec.heads, spec.head_dim);
  return fmt::format("{} heads of {} ({} key/value)", spec.heads, spec.head_dim, spec.kv_heads);
}

std::string table_text(const ModelProfile& profile) {
  TextTable table({"block", "count", "parameters", "state bf16", "forward", "backward", "saved", "selective",
                   "full", "tp: flops", "params", "saved"});
  for (const BlockProfile& block : profile.blocks)
    table.row({name_of(block), fmt::format("{}", block.count), with_commas(block.parameters),
               text(Bytes(block.parameters * kBf16State.total())), text(Flops(block.forward_flops)),
               text(Flops(block.backward_flops)), bytes_text(block.saved_bytes_bf16[0]),
               bytes_text(block.saved_bytes_bf16[1]), bytes_text(block.saved_bytes_bf16[2]),
               percent(block.split_flops_fraction), percent(block.split_parameter_fraction),
               percent(block.split_saved_fraction)});
  const auto saved = total_saved(profile, &BlockProfile::saved_bytes_bf16);
  table.row({"all", fmt::format("{}", profile.max_stages), with_commas(profile.parameters),
             text(Bytes(profile.parameters * kBf16State.total())),
             text(Flops(total_flops(profile, &BlockProfile::forward_flops))),
             text(Flops(total_flops(profile, &BlockProfile::backward_flops))), bytes_text(saved[0]),
             bytes_text(saved[1]), bytes_text(saved[2])});
  return table.text();
}

}  // namespace

OrderedJson to_json(const ModelProfile& profile) {
  const ModelSpec& spec = profile.spec;
  OrderedJson result;
  result["name"] = spec.name;
  result["family"] = text(spec.family);
  result["parameters"] = profile.parameters;
  if (spec.is_mixture()) result["active_parameters"] = profile.active_parameters;
  result["layers"] = spec.layers;
  result["flops_per_token"] = profile.flops_per_token;
  result["sequence_length"] = profile.sequence_length;
  result["dimensions"] = {{"hidden", spec.hidden},
                          {"heads", spec.heads},
                          {"kv_heads", spec.kv_heads},
                          {"head_dim", spec.head_dim},
                          {"ffn", spec.ffn},
                          {"vocab", spec.vocab},
                          {"max_positions", spec.max_positions},
                          {"tied", spec.is_tied}};
  if (const Mixture& m = spec.mixture; spec.is_mixture())
    result["mixture"] = {{"experts", m.experts},
                         {"experts_per_token", m.experts_per_token},
                         {"ffn", m.ffn},
                         {"shared_ffn", m.shared_ffn},
                         {"first_layer", m.first_layer},
                         {"every", m.layer_interval}};
  result["state_bytes"] = {{"bf16", state_json(profile.parameters, kBf16State)},
                           {"fp32", state_json(profile.parameters, kFp32State)}};
  result["kept_bytes_per_token"] = {{"bf16", by_mode(total_saved(profile, &BlockProfile::saved_bytes_bf16))},
                                    {"fp32", by_mode(total_saved(profile, &BlockProfile::saved_bytes_fp32))}};
  result["blocks"] = OrderedJson::array();
  for (const BlockProfile& block : profile.blocks) result["blocks"].push_back(block_json(block));
  result["pipeline"] = {{"most_stages", profile.max_stages},
                        {"elements_per_token", profile.boundary_elements_per_token}};
  return result;
}

std::string text(const ModelProfile& profile) {
  const ModelSpec& spec = profile.spec;
  const std::int64_t parameters = profile.parameters;
  std::string result =
      fmt::format("{} ({}): {} layers, hidden {}, {}, ffn {}, vocabulary {}, {}\n",
                  spec.name.empty() ? "model" : spec.name, text(spec.family), spec.layers, spec.hidden,
                  heads_text(spec), spec.ffn, spec.vocab, spec.is_tied ? "tied" : "untied");
  if (const Mixture& m = spec.mixture; spec.is_mixture())
    result += fmt::format("{} of the layers are mixtures of {} experts, ffn {}{}; each token uses {}\n",
                          num_mixture_layers(profile), m.experts, m.ffn,
                          m.shared_ffn > 0 ? fmt::format(", plus a shared expert, ffn {}", m.shared_ffn) : "",
                          m.experts_per_token);
  TextTable model_table({"parameters", with_commas(parameters)});
  if (spec.is_mixture()) model_table.row({"  active per token", with_commas(profile.active_parameters)});
  model_table.row({"state, bf16 with fp32 optimizer", text(Bytes(parameters * kBf16State.total()))});
  model_table.row({"state, fp32", text(Bytes(parameters * kFp32State.total()))});
  model_table.row({fmt::format("FLOPs per token at sequence length {}", profile.sequence_length),
                   text(Flops(profile.flops_per_token))});
  const double executed_flops = total_flops(profile, &BlockProfile::forward_flops) +
                                total_flops(profile, &BlockProfile::backward_flops);
  if (spec.is_causal) model_table.row({"  without masked attention", text(Flops(executed_flops))});
  result += model_table.text() +
            "\nPer block. FLOPs and saved activations (bf16) are per token. tp: fraction divided by tensor "
            "parallelism.\n";
  result += table_text(profile);
  result += fmt::format("Pipelines: up to {} stages, {} elements per token between two stages\n",
                        profile.max_stages, profile.boundary_elements_per_token);
  return result;
}

std::string text(BlockKind kind) {
  switch (kind) {
    case BlockKind::embedding:
      return "embedding";
    case BlockKind::layer:
      return "layer";
    case BlockKind::custom:
      return "custom";
    case BlockKind::head:
      return "head";
  }
  return "";
}

std::string text(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::none:
      return "none";
    case RecomputeMode::selective:
      return "selective";
    case RecomputeMode::full:
      return "full";
  }
  return "";
}

}  // namespace optimus
