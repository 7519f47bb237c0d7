// Implements the memory part of bound.h: the memory of a stage as a function of its layers, and the least
// recomputation with which a stage fits.
#include <algorithm>
#include <cmath>

#include "schedule/order.h"
#include "search/bound.h"

namespace optimus {

double min_in_flight(const Candidate& c, int stage, int microbatches) {
  const StagePosition at{stage, c.pp, microbatches, c.chunks};
  if (c.schedule == Schedule::interleaved && microbatches % c.pp != 0)
    return std::min(c.pp - stage, microbatches);  // an incomplete last round saves fewer than the formula
  return static_cast<double>(max_saved_microbatches(c.schedule, at)) / c.chunks;
}

Candidate max_sharded(const Demand& demand, Candidate c) {
  const Constraints& constraints = demand.constraints;
  c.zero = !has_copies(demand, c)
               ? 0
               : std::min(constraints.no_zero3 ? 2 : 3, constraints.zero ? constraints.zero->max : 3);
  c.shard_group = 0, c.offload = constraints.offload;
  return c;
}

Bytes memory_limit(const Demand& demand, Bytes available) {
  return demand.constraints.max_memory ? std::min(*demand.constraints.max_memory, available) : available;
}

int num_communicators(const Candidate& c) {
  return (c.tp > 1) + (c.dp > 1) + (c.cp > 1) + (c.pp > 1) + (c.ep > 1);
}

double process_bytes(const Demand& demand, const DeviceType& type, double live, double moving,
                     int communicators) {
  const Constants& constants = demand.constants;
  const double reserved = live + moving * constants.reserve;
  if (type.name == "cpu") return reserved;
  return reserved + constants.context_bytes + communicators * constants.group_bytes;
}

namespace {

constexpr RecomputeMode kModes[] = {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full};

}  // namespace

double BoundModel::limit_of(const Candidate& c, int s) const {
  const Bytes capacity = cluster_view_.min_memory(s * c.width(), (s + 1) * c.width());
  return static_cast<double>(memory_limit(demand_, capacity).value);
}

double BoundModel::MemoryTerms::total_bytes(const StageLayers& layers,
                                            const StageLayers& dense_layers) const {
  double bytes = fixed, largest = transient_of_ends;
  double max_gathered =
      layers.total() > 0 ? std::max(gathered_at_ends, gathered_with_ends) : gathered_at_ends;
  const auto add = [&](const Layer& terms, int count, RecomputeMode mode) {
    if (count == 0) return;
    bytes += count * (terms.state + terms.saved_activations[static_cast<int>(mode)]);
    largest = std::max(largest, terms.transient[static_cast<int>(mode)]);
    max_gathered = std::max(max_gathered, terms.gathered);
  };
  for (const RecomputeMode mode : kModes) {
    add(layer, layers.of(mode) - dense_layers.of(mode), mode);
    add(dense, dense_layers.of(mode), mode);
  }
  constexpr double kRoundingBytes = 8;  // some terms are rounded down
  return bytes + largest + max_gathered - kRoundingBytes;
}

// Stages differ only in the number of micro-batches in flight and in whether they contain the embedding or
// the head. All other terms are computed once for all stages.
BoundModel::MemoryTerms BoundModel::memory_terms(const Candidate& c, int s, double in_flight,
                                                 bool all_modes) {
  const int kind = kind_of_stage(c, s);
  if (kind != terms_kind_ || all_modes != terms_have_all_modes_ || !(c == terms_candidate_)) {
    last_terms_ = terms_of_any_stage(c, kind, all_modes);
    terms_candidate_ = c, terms_kind_ = kind, terms_have_all_modes_ = all_modes;
  }
  MemoryTerms terms = last_terms_.of_layers;
  for (MemoryTerms::Layer* layer : {&terms.layer, &terms.dense})
    for (double& saved_activations : layer->saved_activations) saved_activations *= in_flight;
  const auto add_end = [&](const EndTerms& end) {
    terms.fixed += end.state + end.saved_activations * in_flight;
    terms.transient_of_ends = std::max(terms.transient_of_ends, end.transient);
  };
  if (s == 0) add_end(last_terms_.embedding);
  // If one stage contains both the embedding and the head, a tied embedding exists only once.
  if (s + 1 == c.pp && !(c.pp == 1 && demand_.model.is_tied)) add_end(last_terms_.head);
  add_exchange_memory(terms, c, s, in_flight);
  return terms;
}

// Adds the terms of cost/memory_cost.cpp (peak_beyond_saved), or smaller terms.
void BoundModel::add_exchange_memory(MemoryTerms& terms, const Candidate& c, int s, double in_flight) const {
  // With ZeRO 1, gradients are reduced only in the last micro-batch, after the other micro-batches have freed
  // their activations.
  const bool is_late = c.zero == 1 && demand_.software.runs_programs && in_flight > 1;
  if (is_late) terms.layer.gathered = terms.dense.gathered = 0;
  const bool has_embedding = s == 0, has_head = s + 1 == c.pp;
  if ((!has_embedding && !has_head) || is_late) return;
  const ExchangeBuffers &embedding = last_terms_.embedding.exchange_buffers, &layer = last_terms_.min_layer;
  ExchangeBuffers head = last_terms_.head.exchange_buffers;
  if (has_embedding) terms.gathered_at_ends = embedding.gathered;
  if (has_embedding && has_head && demand_.model.is_tied) {
    // A tied embedding has only one copy, so the head's contribution to the gradient stays in the embedding's
    // buffer.
    terms.layer.gathered += embedding.gradient, terms.dense.gathered += embedding.gradient;
    head.gradient = embedding.gradient;
  } else if (has_head) {
    terms.gathered_at_ends = std::max(terms.gathered_at_ends, head.gradient + head.exchange + head.gathered);
    if (c.chunks == 1) terms.gathered_with_ends = terms.gathered_at_ends + layer.gradient + 2 * layer.weights;
  }
  if (c.zero < 2 || count_microbatches(demand_.batch, c.microbatch, c.dp).number < in_flight + 1) return;
  // The reduction of the first block may still be running when the next gradient of the last block is
  // allocated.
  const ExchangeBuffers &first = has_embedding ? embedding : layer, &last = has_head ? head : layer;
  const double both = first.gradient + first.exchange + last.gradient + last.weights;
  if (has_embedding && has_head) terms.gathered_at_ends = std::max(terms.gathered_at_ends, both);
  terms.gathered_with_ends =
      std::max(terms.gathered_with_ends, both + (has_head && c.chunks == 1 ? layer.weights : 0));
}

BoundModel::StageTerms BoundModel::terms_of_any_stage(const Candidate& c, int kind, bool all_modes) {
  const SampleCost& sample = sample_cost(kind, c, c.recompute);
  const double shards = num_shards(c), expert_shards = num_expert_shards(c),
               reserve_factor = 1 + demand_.constants.reserve;
  const bool is_optimus = demand_.software.runs_programs,
             is_whole_in_other_software = c.zero >= 3 && !is_optimus;
  const auto state = [&](const BlockBytes& block) {
    const double experts = block.elements > 0 ? block.experts / block.elements : 0;
    const double sharded = (1 - experts) / shards + experts / expert_shards;
    return block.weights * (c.zero >= 3 ? sharded : 1) * (is_whole_in_other_software && c.zero == 3 ? 2 : 1) +
           block.gradients * (c.zero >= 2 ? sharded : 1) +
           (c.offload ? 0
                      : block.optimizer * (c.zero >= 1 ? sharded : 1) *
                            (is_whole_in_other_software ? 2.0 / 3 : 1) * (c.copy_distance > 0 ? 2 : 1));
  };
  // Other trainers gather weights only with ZeRO 3. The exchange buffer is at least as large as a whole
  // gradient.
  const double weight = bytes_of(demand_.precision), gradient = demand_.precision == Precision::fp64 ? 8 : 4;
  const bool is_exchanged = is_optimus && c.zero > 0 && c.zero <= 3 && shards > 1;
  const auto exchange_buffers = [&](const BlockBytes& block) {
    const double amount = block.elements * reserve_factor;
    if (!is_exchanged)
      return ExchangeBuffers{.gathered =
                                 is_optimus || c.zero != 3 ? 0 : amount * 8 * demand_.constants.live_factor};
    return ExchangeBuffers{c.zero == 3 ? amount * weight : 0, c.zero >= 2 ? amount * gradient : 0,
                           amount * gradient};
  };
  StageTerms result;
  MemoryTerms& terms = result.of_layers;
  terms.fixed = process_bytes(demand_, cluster_view_.type_of(kind), 0, 0, num_communicators(c));
  const auto set_layer_terms = [&](MemoryTerms::Layer& layer, BlockBytes SampleCost::*member) {
    layer.state = state(sample.*member);
    // Buffers of two adjacent layers, and the exchange buffer of one of them.
    const ExchangeBuffers both = exchange_buffers(sample.*member);
    layer.gathered = both.exchange + 2 * both.gradient + 2 * both.weights + both.gathered;
    for (const RecomputeMode mode : kModes) {
      if (!all_modes && mode != c.recompute) continue;
      const BlockBytes& bytes = sample_cost(kind, c, mode).*member;
      layer.saved_activations[static_cast<int>(mode)] = bytes.saved_activations * reserve_factor;
      layer.transient[static_cast<int>(mode)] = bytes.transient * reserve_factor;
    }
  };
  set_layer_terms(terms.layer, &SampleCost::layer);
  if (has_two_kinds_) set_layer_terms(terms.dense, &SampleCost::dense);
  const auto end = [&](const BlockBytes& block) {
    return EndTerms{state(block), block.saved_activations * reserve_factor, block.transient * reserve_factor,
                    exchange_buffers(block)};
  };
  result.embedding = end(sample.embedding), result.head = end(sample.head);
  const bool is_dense_less = has_two_kinds_ && sample.dense.elements < sample.layer.elements;
  result.min_layer = exchange_buffers(is_dense_less ? sample.dense : sample.layer);
  return result;
}

void BoundModel::update_memory_bound(Bound& bound, const Candidate& c, int s, const StageLayers& layers,
                                     double in_flight) {
  const double bytes = memory_terms(c, s, in_flight, c.is_fitted).total_bytes(layers, dense_of(c, s, layers)),
               limit = limit_of(c, s);
  if (bound.limit == 0 || bytes - limit > bound.bytes - bound.limit) bound.bytes = bytes, bound.limit = limit;
}

// Tries every number of fully recomputed layers. For each number, as many other layers are recomputed
// selectively as memory requires. Returns the fastest combination that fits.
StageLayers BoundModel::fitted_layers(const Candidate& c, int s, int layers) {
  const int microbatches = count_microbatches(demand_.batch, c.microbatch, c.dp).number;
  const MemoryTerms terms = memory_terms(c, s, min_in_flight(c, s, microbatches), true);
  const double limit = limit_of(c, s) * (1 - 0.001 * c.memory_margin);
  const int kind = kind_of_stage(c, s);
  const auto layer_seconds = [&](RecomputeMode mode) { return sample_cost(kind, c, mode).backward.layer; };
  const double none = layer_seconds(RecomputeMode::none),
               selective = layer_seconds(RecomputeMode::selective) - none,
               full = layer_seconds(RecomputeMode::full) - none;
  const double selective_saving = terms.layer.saved_activations[0] - terms.layer.saved_activations[1];
  const auto bytes = [&](const StageLayers& trial) {
    return terms.total_bytes(trial, dense_of(c, s, trial));
  };
  StageLayers best_layers = uniform_layers(RecomputeMode::full, layers);
  double min_seconds = layers * full;
  // The minimum number of fully recomputed layers. With fewer, the stage does not fit even if all other
  // layers are recomputed selectively.
  int min_full_layers = 0;
  const double full_saving = terms.layer.saved_activations[1] - terms.layer.saved_activations[2];
  if (!has_two_kinds_ && selective_saving >= 0 && full_saving > 0) {
    const double all_selective =
        terms.fixed + layers * (terms.layer.state + terms.layer.saved_activations[1]);
    min_full_layers =
        static_cast<int>(std::clamp(std::floor((all_selective - limit) / full_saving), 0.0, 1.0 * layers));
  }
  for (int f = min_full_layers; f < layers && f * full < min_seconds; ++f) {
    StageLayers trial{f, 0, layers - f};
    if (const double excess = bytes(trial) - limit; excess > 0) {
      if (selective_saving <= 0 || excess / selective_saving > layers - f) continue;
      trial.selective = std::min(layers - f, static_cast<int>(std::ceil(excess / selective_saving)));
      trial.none = layers - f - trial.selective;
      if (bytes(trial) > limit) continue;
    }
    if (const double seconds = f * full + trial.selective * selective; seconds < min_seconds)
      min_seconds = seconds, best_layers = trial;
  }
  return best_layers;
}

std::vector<StageLayers> BoundModel::layers_of(const Candidate& c) {
  std::vector<StageLayers> layers;
  for (int s = 0; s < c.pp; ++s) {
    const int count = split_layers(demand_.model.layers, c.pp, s);  // does not depend on the number of chunks
    layers.push_back(c.is_fitted ? fitted_layers(c, s, count) : uniform_layers(c.recompute, count));
  }
  return layers;
}

}  // namespace optimus
