// See memory_cost.h.
#include "cost/memory_cost.h"

#include <algorithm>

#include "plan/layouts.h"
#include "schedule/order.h"
#include "schedule/sizes.h"

namespace optimus {
namespace {

// Activation bytes of one block for one micro-batch on one device.
struct ActivationBytes {
  double saved = 0;       // saved from the forward to the backward pass
  double transient = 0;   // live while the block runs: recomputed activations, gradients, logits
  double recomputed = 0;  // recomputed activations; included in `transient`
};

class StageMemoryModel {
 public:
  StageMemoryModel(const Setup& setup, int pipeline, int stage)
      : setup_(setup),
        pipeline_(setup.plan.pipelines[static_cast<std::size_t>(pipeline)]),
        stage_(pipeline_.stages[static_cast<std::size_t>(stage)]),
        sizes_(setup.plan, setup.model, {pipeline, stage, 0}),
        is_optimus_(setup.software.runs_programs),
        position_{stage, static_cast<int>(pipeline_.stages.size()),
                  static_cast<int>(pipeline_.microbatches.size()), static_cast<int>(stage_.chunks.size())} {}

  StageMemory count(const Constants& constants) {
    // Blocks of the same kind and strategy need the same memory, so the memory of one block is multiplied by
    // their number.
    double weights = 0, gradients = 0, optimizer = 0, saved = 0, max_transient = 0, max_gathered = 0;
    for (const Chunk& chunk : stage_.chunks)
      for (const BlockRun& run : chunk.runs)
        for (int block = run.first_block; block < run.first_block + run.count;) {
          const int num_equal = num_equal_blocks(block, run);
          const double elements = elements_of(block);
          const bool is_fully_sharded = run.strategy.zero == 3 && !is_optimus_;
          // FSDP stores weight shards in fp32, without a 16-bit copy.
          weights += num_equal * state(block, StateKind::weights) * (is_fully_sharded ? 2 : 1);
          gradients += num_equal * state(block, StateKind::gradients);
          gradients += num_equal * elements * setup_.software.copied_bytes;
          // In a pipeline, FSDP keeps gathered weights and accumulates unsharded gradients until the last
          // micro-batch.
          if (is_fully_sharded && position_.num_stages > 1)
            weights += num_equal * elements * 2, gradients += num_equal * elements * 4;
          if (!run.strategy.offload)
            optimizer += num_equal * state(block, StateKind::optimizer) *
                         (is_fully_sharded                   ? 2.0 / 3
                          : setup_.software.copied_bytes > 0 ? 4.0 / 3
                                                             : 1);
          optimizer += num_equal * static_cast<double>(sizes_.copy_state(block).value);
          const ActivationBytes bytes = activations(block, run.strategy);
          const double imbalance = imbalance_bytes(block, run.strategy, constants);
          const LayerGroup group = group_of(block, num_equal, run);
          saved += group.inputs * bytes.saved;
          if (run.strategy.recompute != RecomputeMode::full) saved += num_equal * imbalance;
          max_transient =
              std::max(max_transient,
                       bytes.transient + (group.size - 1) * (bytes.recomputed + bytes.saved) + imbalance);
          if (is_fully_sharded) max_gathered = std::max(max_gathered, elements * (2 * 2 + 4));
          block += num_equal;
        }
    const int chunks = static_cast<int>(stage_.chunks.size());
    const double in_flight =
        static_cast<double>(max_saved_microbatches(setup_.plan.schedule, position_)) / chunks;
    const double transient = is_optimus_ ? peak_beyond_saved(saved, in_flight, max_transient)
                                         : (max_transient + max_gathered) * constants.live_factor;
    const auto bytes = [](double amount) { return Bytes(static_cast<std::int64_t>(amount)); };
    StageMemory memory{bytes(weights),           bytes(gradients), bytes(optimizer),
                       bytes(saved * in_flight), bytes(transient), {}};
    memory.total = memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.buffers;
    return memory;
  }

 private:
  int num_equal_blocks(int block, const BlockRun& run) const {
    int num_equal = 1;
    while (block + num_equal < run.first_block + run.count &&
           pattern(setup_.model, block + num_equal) == pattern(setup_.model, block))
      ++num_equal;
    return num_equal;
  }

  // A group of layers that are recomputed together. They share one saved input, and their recomputed
  // activations are live at the same time.
  struct LayerGroup {
    int size = 1;
    double inputs = 1;  // number of saved inputs for `num_equal` layers
  };
  LayerGroup group_of(int block, int num_equal, const BlockRun& run) const {
    const int size = run.strategy.recompute_layers;
    if (size == 1 || block_kind(setup_.model, block) != BlockKind::layer)
      return {1, static_cast<double>(num_equal)};
    const int first =
        block_kind(setup_.model, run.first_block) == BlockKind::layer ? run.first_block : run.first_block + 1;
    const int num_before = block - first;
    const auto starts = [&](int layers) { return (layers + size - 1) / size; };
    return {std::min(size, num_equal),
            static_cast<double>(starts(num_before + num_equal) - starts(num_before))};
  }

  // Peak memory in excess of the saved activations of all micro-batches in flight. The activations of a
  // micro-batch are freed after its last backward pass.
  double peak_beyond_saved(double saved, double in_flight, double transient) const {
    const double saved_bytes = saved * in_flight;
    double peak = transient + gathered_bytes_at_peak();
    const bool has_end = !setup_.model.is_custom() && (has_embedding() || has_head());
    if (has_end && position_.num_microbatches > 1) {
      // Another forward pass refills the freed space.
      const bool is_refilled = position_.num_microbatches > in_flight;
      peak = std::max(peak, transient + between_microbatches() - (is_refilled ? 0 : saved));
    }
    if (has_end && has_embedding()) peak = std::max(peak, peak_at_embedding() - saved);
    return std::max(
        {peak, peak_in_last_microbatch(saved, transient) - saved_bytes, shard_copy_bytes() - saved_bytes});
  }

  // Memory for redundant shard copies. The peak is after the last backward pass, when the gradients of all
  // shards whose updates this device repeats have been received and the gradient of the first block is still
  // being reduced.
  double shard_copy_bytes() const {
    double sum = 0;
    for (const Chunk& chunk : stage_.chunks)
      for (const BlockRun& run : chunk.runs)
        for (int block = run.first_block;
             has_shard_copies(setup_.plan, run.strategy) && block < run.first_block + run.count;) {
          const int num_equal = num_equal_blocks(block, run);
          sum += num_equal * static_cast<double>(sizes_.shard_buffer(block, StateKind::gradients).value);
          block += num_equal;
        }
    if (sum == 0) return 0;
    const int first = stage_.chunks.front().first_block();
    return sum + gathered_bytes(first).gradient + exchange(first);
  }

  // Peak memory with ZeRO 1, which reduces gradients and needs exchange buffers only in the last micro-batch.
  double peak_in_last_microbatch(double saved, double transient) const {
    double peak = 0;
    for (const Chunk& chunk : stage_.chunks)
      for (const BlockRun& run : chunk.runs) {
        if (run.strategy.zero != 1 || shard_count(stage_, run.strategy) == 1) continue;
        for (int block = run.first_block; block < run.first_block + run.count;
             block += num_equal_blocks(block, run)) {
          const bool is_embedding = block_kind(setup_.model, block) == BlockKind::embedding;
          peak = std::max(peak, exchange(block) + (is_embedding ? 0 : saved + transient));
        }
      }
    return peak;
  }
  double exchange(int block) const {
    return static_cast<double>(sizes_.exchange_buffer(block, StateKind::gradients).value);
  }

  // Bytes of a block that ZeRO 2 or 3 shards: the gathered weights, the unreduced gradient, and the exchange
  // buffer with the concatenated shards of all ranks. 0 for other blocks.
  struct GatheredBytes {
    double weights = 0, gradient = 0, exchange = 0;
  };
  GatheredBytes gathered_bytes(int block) const {
    const LayerStrategy& s = strategy_of(stage_, block);
    if (s.zero < 2 || shard_count(stage_, s) == 1) return {};
    const auto whole = [&](StateKind kind) {
      return static_cast<double>(sizes_.whole_buffer(block, kind).value);
    };
    return {s.zero == 3 ? whole(StateKind::weights) : 0, whole(StateKind::gradients), exchange(block)};
  }

  // Bytes of gathered weights and unreduced gradients while saved activations are at their peak. For layers,
  // these are the weights and gradients of two adjacent layers and one exchange buffer.
  double gathered_bytes_at_peak() const {
    double peak = 0;
    for (const Chunk& chunk : stage_.chunks)
      for (const BlockRun& run : chunk.runs)
        for (int block = run.first_block; block < run.first_block + run.count;
             block += num_equal_blocks(block, run)) {
          const BlockKind kind = block_kind(setup_.model, block);
          if (kind == BlockKind::embedding || kind == BlockKind::head) continue;
          const GatheredBytes layer = gathered_bytes(block);
          peak = std::max(peak,
                          tied_gradient_bytes(0) + layer.exchange + 2 * layer.gradient + 2 * layer.weights);
        }
    return has_head() && !setup_.model.is_custom() ? std::max(peak, tied_gradient_bytes(0) + peak_at_head())
                                                   : peak;
  }
  bool has_embedding() const { return stage_.chunks.front().first_block() == 0; }
  bool has_head() const { return stage_.chunks.back().end_block() == setup_.plan.num_blocks; }

  // The number of gradients of the head that are in memory after `num_done` micro-batches. With tp 1, the
  // gradient of the head is computed together with the loss. If all forward passes come first (GPipe), the
  // gradient of each micro-batch stays in memory until its backward pass.
  int num_head_gradients(int num_done) const {
    const bool comes_with_loss = strategy_of(stage_, setup_.plan.num_blocks - 1).tp == 1;
    return comes_with_loss && setup_.plan.schedule == Schedule::gpipe ? position_.num_microbatches - num_done
                                                                      : 1;
  }

  // With tied embeddings, the head's contribution to the embedding gradient stays live until the embedding
  // adds its own contribution.
  double tied_gradient_bytes(int num_done) const {
    const bool is_tied_on_stage = setup_.model.is_tied && has_embedding() && has_head();
    return is_tied_on_stage ? num_head_gradients(num_done) * gathered_bytes(0).gradient : 0;
  }

  // The peak at the embedding. The embedding gradient is computed while the gradient of the next layer is
  // being reduced to shards, and is then reduced itself.
  double peak_at_embedding() const {
    const GatheredBytes own_bytes = gathered_bytes(0),
                        next = stage_.chunks.front().end_block() > 1 ? gathered_bytes(1) : GatheredBytes{};
    const bool has_norm = setup_.model.norm_position == NormPosition::post;
    const double regathered =
        position_.num_microbatches > 1 ? own_bytes.weights : 0;  // gathered again for the next forward pass
    return std::max(
        {own_bytes.weights + next.weights,
         own_bytes.gradient + next.gradient + next.exchange + regathered + (has_norm ? own_bytes.weights : 0),
         own_bytes.gradient + own_bytes.exchange});
  }

  // The peak at the head. The weights of the head are gathered once for a forward pass and the backward pass
  // that follows it.
  double peak_at_head() const {
    const Chunk& chunk = stage_.chunks.back();
    const int head = chunk.end_block() - 1;
    const GatheredBytes own_bytes = gathered_bytes(head),
                        next = head > chunk.first_block() ? gathered_bytes(head - 1) : GatheredBytes{};
    return num_head_gradients(0) * own_bytes.gradient +
           std::max(own_bytes.weights + next.weights, own_bytes.exchange + next.gradient + 2 * next.weights);
  }

  // Bytes that are live between two micro-batches. The last gradient reduction of a micro-batch, for the
  // first block of the stage, overlaps with the backward pass of the last block of the stage in the next
  // micro-batch.
  double between_microbatches() const {
    const Chunk& chunk = stage_.chunks.back();
    const int last = chunk.end_block() - 1;
    const GatheredBytes first = gathered_bytes(stage_.chunks.front().first_block()),
                        last_block = gathered_bytes(last),
                        next = last > chunk.first_block() ? gathered_bytes(last - 1) : GatheredBytes{};
    const int gradients = has_head() ? num_head_gradients(1) : 1;
    return tied_gradient_bytes(1) + first.gradient + first.exchange + gradients * last_block.gradient +
           last_block.weights + next.weights;
  }

  double elements_of(int block) const {
    const int width = state_bytes(setup_.plan.precision, setup_.plan.accumulators, StateKind::weights);
    return static_cast<double>(
               (sizes_.part(block, StateKind::weights) + sizes_.experts(block, StateKind::weights)).value) /
           width;
  }
  double state(int block, StateKind kind) const {
    return static_cast<double>(sizes_.state(block, kind).value);
  }

  // Bytes of additional activations (input, gate, up and activation) on an MoE device that receives more than
  // its even share of tokens.
  double imbalance_bytes(int block, const LayerStrategy& s, const Constants& constants) const {
    if (!is_mixture_block(setup_.model, block) || s.ep == 1 || setup_.software.balances_experts) return 0;
    const auto hidden = static_cast<double>(setup_.model.hidden);
    const auto even_bytes =
        static_cast<double>(sizes_.dispatched_tokens(block, pipeline_.microbatches.front()).value);
    return even_bytes * (1 + 3 * static_cast<double>(setup_.model.mixture.ffn) / hidden) *
           (constants.expert_imbalance - 1);
  }

  ActivationBytes activations(int block, const LayerStrategy& strategy) const {
    const int sequences = pipeline_.microbatches.front();
    if (is_optimus_) {
      const double gradients = static_cast<double>(sizes_.gradients(block, sequences).bytes.value +
                                                   sizes_.transient_gradients(block, sequences).bytes.value);
      const auto recomputed = static_cast<double>(sizes_.transient(block, sequences).bytes.value);
      return {static_cast<double>(sizes_.saved(block, sequences).bytes.value +
                                  sizes_.graph(block, sequences).value),
              gradients + recomputed +
                  static_cast<double>(block + 1 == setup_.plan.num_blocks && !setup_.model.is_custom()
                                          ? sizes_.logits(block, sequences).bytes.value
                                          : sizes_.graph_work(block, sequences).value),
              recomputed};
    }
    return other_software_activations(block, strategy, sequences);
  }

  ActivationBytes other_software_activations(int block, const LayerStrategy& s, int sequences) const {
    const int dp = data_parallel(stage_, s);
    const double tokens = static_cast<double>((sequences + dp - 1) / dp) *
                          static_cast<double>(setup_.plan.sequence_length) / s.cp;
    const int width = bytes_of(setup_.plan.precision);
    double saved_bytes = 0, input = 0;
    for (const Operation& op : operations(setup_.model, block, setup_.plan.sequence_length))
      for (const SavedTensor& saved : op.saved) {
        const double share = saved.split == SplitUnit::none ? (s.sequence_parallel ? 1.0 / s.tp : 1)
                                                            : share_of_part(setup_.model, saved.split, s.tp);
        const double bytes = saved.elements_per_token * bytes_per_element(saved.type, width) * share * tokens;
        saved_bytes += bytes;
        if (saved.strongest_saving_mode == RecomputeMode::full) input += bytes;
      }
    if (block_kind(setup_.model, block) == BlockKind::head) {
      // Counts the logits in 16 bits, the logits in fp32, and their gradient in fp32.
      const double logits =
          static_cast<double>(setup_.model.vocab) * share_of_part(setup_.model, SplitUnit::vocab, s.tp);
      return {input, tokens * logits * (width + 4 + 4)};
    }
    // Unfused attention saves 5 bytes per score: probabilities (2), dropout mask (1) and dropout output
    // (2).
    const double scores = setup_.software.has_flash_attention() || block == 0
                              ? 0
                              : 5 * static_cast<double>(setup_.model.heads) *
                                    share_of_part(setup_.model, SplitUnit::heads, s.tp) *
                                    static_cast<double>(setup_.plan.sequence_length) * tokens;
    switch (s.recompute) {
      case RecomputeMode::none:
        return {compiled_bytes(saved_bytes) + scores, 0.4 * saved_bytes};
      case RecomputeMode::selective:
        if (setup_.software.selective == SelectiveMeaning::attention_core)
          return {saved_bytes, 0.4 * saved_bytes + scores};
        return {0.5 * (compiled_bytes(saved_bytes) + input), 0.5 * saved_bytes};
      case RecomputeMode::full:
        return {input, 1.4 * saved_bytes + scores, saved_bytes};
    }
    return {};
  }

  // Compiled code saves fewer activations because the compiler fuses kernels. Inputs of fp8 GEMMs are saved
  // in fp8.
  double compiled_bytes(double bytes) const {
    if (setup_.software.kernels != KernelStyle::compiled) return bytes;
    return bytes * (setup_.format.is_low_precision() ? 0.6 : 0.85);
  }

  const Setup& setup_;
  const Pipeline& pipeline_;
  const Stage& stage_;
  DeviceSizes sizes_;
  const bool is_optimus_;
  const StagePosition position_;
};

}  // namespace

StageMemory stage_memory(const Setup& setup, int pipeline, int stage, const Constants& constants) {
  return StageMemoryModel(setup, pipeline, stage).count(constants);
}

Bytes measured_as(MemoryKind kind, const StageMemory& memory, int num_groups, const Constants& constants) {
  const auto live = static_cast<double>(memory.total.value);
  const double reservable = static_cast<double>((memory.activations + memory.buffers).value);
  const double reserved = live + reservable * constants.reserve;
  switch (kind) {
    case MemoryKind::allocated:
      return memory.total;
    case MemoryKind::reserved:
      return Bytes(static_cast<std::int64_t>(reserved));
    case MemoryKind::process:
      return Bytes(
          static_cast<std::int64_t>(reserved + constants.context_bytes + num_groups * constants.group_bytes));
  }
  return memory.total;
}

}  // namespace optimus
