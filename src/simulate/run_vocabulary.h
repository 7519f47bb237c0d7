// Interprets the words in tables of measured runs: GPUs, networks, models, number formats, sharding modes.
// Each kind of word has one table; nothing here is fitted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/cluster.h"
#include "cost/device_cost.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// The cluster for words such as "A100-80GB (400W)" and "ib-ndr-8x400": `num_devices` GPUs in nodes of
// `per_node`. `rack_group`: size of the groups of devices that the authors place in one rack if they fit, so
// that each rack has only whole groups. Throws UserError for an unknown GPU.
Cluster cluster_by_gpu_name(const std::string& gpu_name, const std::string& network, int per_node,
                            int num_devices, int rack_group = 1);

// A published model by its lower-case name; empty if it is not a preset.
std::optional<ModelSpec> model_by_name(const std::string& name);
// A spec without dimensions, of the family that the model's name suggests, or otherwise its ratio of `ffn`
// to `hidden`.
ModelSpec model_without_dimensions(const std::string& name, std::int64_t ffn, std::int64_t hidden);
// Properties of a published MoE model that tables of runs omit, by its lower-case name; its other
// properties are as in a dense model.
struct KnownMoe {
  std::int64_t head_dim = 0, shared_ffn = 0, first_layer = 0;
  LatentAttention latent{};
};
KnownMoe moe_by_name(const std::string& name);
bool pads_vocabulary(const Software& software);  // whether the vocabulary is padded to a multiple of 128 x tp

struct NumberFormats {
  Precision precision = Precision::bf16;
  GemmFormat format{};
  int gradient_bytes = 0;  // 0: as specified by the software
};
NumberFormats number_formats_of(const std::string& description, const Software& software);

struct Sharding {
  int zero = 0;
  int group = 0;  // number of devices that share one copy of the state; 0: all
  bool is_default = false;
};
Sharding sharding_of(const std::string& description, const Software& software);

// The number of chunks per stage if a run does not specify it: software that interleaves by default divides
// stages into as many equal chunks as the layers allow, at most ten.
int default_chunks(const Software& software, std::int64_t layers, std::int64_t pp);

RecomputeMode default_recompute(const Software& software, std::int64_t sequence_length);

// For an unknown software name, the known software that it most likely corresponds to.
const Software& guess_software(std::string_view name);

}  // namespace optimus
