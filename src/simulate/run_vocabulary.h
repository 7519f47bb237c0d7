// Interprets the words in tables of measured runs: GPUs, networks, models, number formats, sharding modes.
// Each kind of word has one table. Nothing in this file is fitted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/cluster.h"
#include "cost/device_cost.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// The cluster for words such as "A100-80GB (400W)" and "ib-ndr-8x400", with `num_devices` GPUs in nodes of
// `per_node`. The authors of a table place groups of `rack_group` devices in one rack if they fit, so that
// each rack contains only whole groups. Throws UserError for an unknown GPU.
Cluster cluster_by_gpu_name(const std::string& gpu_name, const std::string& network, int per_node,
                            int num_devices, int rack_group = 1);

// Returns the published model with this lower-case name, or nullopt if no preset has the name.
std::optional<ModelSpec> model_by_name(const std::string& name);
// Returns a spec without dimensions. Its family is derived from the model's name or, if the name suggests
// none, from the ratio of `ffn` to `hidden`.
ModelSpec model_without_dimensions(const std::string& name, std::int64_t ffn, std::int64_t hidden);
// Properties of a published MoE model that tables of runs omit. The model is looked up by its lower-case
// name.
struct KnownMoe {
  std::int64_t head_dim = 0, shared_ffn = 0, first_layer = 0;
  LatentAttention latent{};
};
KnownMoe moe_by_name(const std::string& name);
bool pads_vocabulary(const Software& software);  // whether the vocabulary is padded to a multiple of 128 x tp

struct NumberFormats {
  Precision precision = Precision::bf16;
  GemmFormat format{};
  int gradient_bytes = 0;  // 0 means the software's default
};
NumberFormats number_formats_of(const std::string& description, const Software& software);

struct Sharding {
  int zero = 0;
  int group = 0;  // number of devices that share one copy of the state; 0 means all
  bool is_default = false;
};
Sharding sharding_of(const std::string& description, const Software& software);

// The number of chunks per stage for a run that does not specify it. Software that interleaves by default
// divides stages into as many equal chunks as the layers allow, but at most ten.
int default_chunks(const Software& software, std::int64_t layers, std::int64_t pp);

RecomputeMode default_recompute(const Software& software, std::int64_t sequence_length);

// For an unknown software name, the known software that it most likely corresponds to.
const Software& guess_software(std::string_view name);

}  // namespace optimus
