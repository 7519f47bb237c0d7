// What the words in a table of measured runs mean: graphics cards, networks, models, number formats, ways of sharding. Each is
// one visible table; nothing here is fitted.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/cluster.h"
#include "cost/device_cost.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// "A100-80GB (400W)", "ib-ndr-8x400": that many cards in nodes of `per_node`. `together`: devices that whoever ran it put into
// one rack where they fit, so that of racks only as many are used as are whole such groups. Throws UserError for an unknown card.
Cluster known_cluster(const std::string& card, const std::string& network, int per_node, int num_devices,
                      int together = 1);

// A published shape by its name, lower case; nothing when it is not in the presets.
std::optional<ModelSpec> known_model(const std::string& name);
// A spec without dimensions, of the family that a model's name (or else its shape) speaks of.
ModelSpec blank_model(const std::string& name, std::int64_t ffn, std::int64_t hidden);
// What tables of runs do not say of a published mixture of experts, by its name, lower case; the rest is as in a plain one.
struct KnownMixture {
  std::int64_t head_dim = 0, shared_ffn = 0, first_layer = 0;
  LatentAttention latent{};
};
KnownMixture known_mixture(const std::string& name);
bool pads_vocabulary(const Software& software);  // to a multiple of 128 x tp

struct Numbers {
  Precision precision = Precision::bf16;
  ProductFormat format{};
  int gradient_bytes = 0;  // 0: the software's
};
Numbers numbers_of(const std::string& words, const Software& software);

struct Sharding {
  int zero = 0;
  int group = 0;  // devices that share one copy; 0: all
  bool is_filled = false;
};
Sharding sharding_of(const std::string& words, const Software& software);

// Chunks a stage where a run does not say: those that interleave cut stages as finely as layers allow, up to ten.
int usual_chunks(const Software& software, std::int64_t layers, std::int64_t pp);

RecomputeMode usual_recompute(const Software& software, std::int64_t sequence_length);

// For a name that is not in the table: the generation that it most likely belongs to.
const Software& guessed_software(std::string_view name);

}  // namespace optimus
