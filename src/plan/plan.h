// Plan: who computes what. Plain data; everything that runs, times, moves or exports a training reads it.
//
//   batch ─┬─ pipeline 0: micro-batches ── stage 0 ── stage 1 ── …      each stage: devices, and chunks of
//   blocks
//          └─ pipeline 1: micro-batches ── stage 0 ── …                 each run of blocks: a LayerStrategy
//
// A micro-batch belongs to one pipeline. Inside a stage every layer splits the micro-batch's samples (dp),
// positions (cp) and features (tp) over all devices of the stage: dp = devices / (tp * cp). Ordinary data
// parallelism is a stage of several replicas; several pipelines are for pipelines of different depth, speed
// or island.
//
// Devices are virtual; a DeviceMap (cluster) says which physical ones they are. Read next: plan/validate.h
// (what makes a plan valid), plan/plan_json.h (its file), plan/layouts.h (who holds which parameters).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/operations.h"

namespace optimus {

enum class Schedule { gpipe, one_f_one_b, interleaved, zero_bubble, pipedream, pipemare };
enum class Precision { fp64, fp32, bf16, fp16, fp8 };

// How one layer is split over the devices of its stage. Device i of the stage is tensor part i % tp, context
// part i / tp % cp, data part i / (tp * cp). In layers that are mixtures of experts each device routes the positions that it
// has; `ep` neighbouring devices, whichever parts they are otherwise, deal the experts out among them, device i holding the
// (i % ep)-th part of them, and send each other tokens. Experts are never cut; tp above 1 needs sequence_parallel there.
struct LayerStrategy {
  int tp = 1;                      // tensor parallel: heads, ffn columns and vocabulary are cut
  bool sequence_parallel = false;  // norms and residuals are cut along positions over the tp devices
  int cp = 1;                      // context parallel: positions are cut, attention goes round a ring
  int ep = 1;    // expert parallel: devices among which a mixture's experts are dealt out; 1 for dense models
  int zero = 0;  // 0 nothing sharded; 1 optimizer; 2 and gradients; 3 and parameters
  int shard_group = 0;  // devices that share one copy of the state; 0: all dp * cp (full sharding)
  RecomputeMode recompute = RecomputeMode::none;
  int recompute_layers =
      1;                 // full: neighbouring layers that are computed again together, from one kept input
  bool offload = false;  // optimizer state in host memory
  bool operator==(const LayerStrategy&) const = default;
};

// Neighbouring blocks [first, first + count) of the model with one strategy. Block 0 is the embedding, the
// last the head.
struct BlockRun {
  int first = 0, count = 0;
  LayerStrategy strategy;
  bool operator==(const BlockRun&) const = default;
};

struct Chunk {
  std::vector<BlockRun> runs;  // contiguous
  int first() const { return runs.front().first; }
  int end() const { return runs.back().first + runs.back().count; }
  bool operator==(const Chunk&) const = default;
};

// chunk c of stage s comes before chunk c of stage s + 1; chunk c of the last stage before chunk c + 1 of the
// first.
struct Stage {
  std::vector<int> devices;
  std::vector<Chunk> chunks;  // one, except for the interleaved schedule
  bool operator==(const Stage&) const = default;
};

struct Pipeline {
  std::vector<Stage> stages;
  std::vector<int> microbatches;  // sequences in each; may differ
  bool operator==(const Pipeline&) const = default;
};

// Products in 8 bits (plan/fp8.h). Blocks named here multiply so in any precision but fp16; precision fp8 is bf16 with some named.
// Where scales of inputs and gradients come from: the steps of a window, or the tensor at hand, of one micro-batch. Weights have the window's.
enum class Fp8Scaling { window, current };
struct Fp8Plan {
  std::vector<int> blocks;  // layers, in order; none: precision fp8 chooses, and others have none
  int window = 16;          // steps whose maxima a scale comes from
  Fp8Scaling scaling = Fp8Scaling::window;
  bool operator==(const Fp8Plan&) const = default;
};

struct Plan {
  std::string model;   // its name, for people
  int num_blocks = 0;  // layers + 2; those of a custom model
  std::int64_t batch = 0, sequence_length = 0;
  Schedule schedule = Schedule::one_f_one_b;
  Precision precision = Precision::bf16;
  Precision accumulators = Precision::fp32;  // of gradients: fp32, or the plan's own precision
  // A sharded state has a second copy: shard s is repeated by shard (s + buddy) mod shards of its group,
  // which gets the reduced gradient and repeats the update. 0: no such copy.
  int buddy = 0;
  Fp8Plan fp8;
  std::vector<Pipeline> pipelines;
  bool operator==(const Plan&) const = default;
};

std::string text(Schedule schedule);    // "1f1b"
std::string text(Precision precision);  // "bf16"
std::string text(Fp8Scaling scaling);   // "window"
std::vector<std::string> schedule_words();
std::vector<std::string> precision_words();
std::vector<std::string> recompute_words();
// Throw UserError naming `what` when the word is unknown.
Schedule parse_schedule(const std::string& word, const std::string& what);
Precision parse_precision(const std::string& word, const std::string& what);
RecomputeMode parse_recompute(const std::string& word, const std::string& what);
// PipeDream and PipeMare: weights change while micro-batches are under way.
bool is_asynchronous(Schedule schedule);
int bytes_of(
    Precision precision);  // of one element; fp8 computes in 1 but keeps activations and weights in 2

// The largest plan: more devices, or more micro-batches in all, are refused before memory is taken for them.
inline constexpr int kMostPlanDevices = 1'000'000, kMostMicrobatches = 10'000'000;

int num_devices(const Plan& plan);
bool has_device(const Plan& plan, int device);
// One more than the highest device that it names.
int num_device_numbers(const Plan& plan);
int data_parallel(const Stage& stage, const LayerStrategy& strategy);  // dp = devices / (tp * cp)
int shard_count(const Stage& stage,
                const LayerStrategy& strategy);  // devices that share one copy of the state
// The same of a mixture's experts: those with the same part of them. As many as the shard group reaches, which has `ep` times
// fewer copies of an expert than of the rest.
int expert_shard_count(const Stage& stage, const LayerStrategy& strategy);

// Where a device stands, and the strategy of a block there.
struct Seat {
  int pipeline = 0, stage = 0, index = 0;  // index into Stage::devices
  bool operator==(const Seat&) const = default;
};
// Throws UserError when the plan has no such device. O(devices).
Seat seat_of(const Plan& plan, int device);
const LayerStrategy& strategy_of(const Stage& stage, int block);
// The blocks of the layer's run that are computed again together with it: from the one whose input is kept. Of a block that is
// not computed again, the block alone.
Span recompute_group(const ModelSpec& model, const Stage& stage, int block);

// A plan of equal stages in one pipeline: the usual pp x tp x cp x dp grid on devices 0 …, blocks dealt
// evenly (the embedding goes with the first layers, the head with the last), micro-batches of dp * microbatch
// sequences, the last one smaller when they do not divide the batch.
struct UniformPlan {
  int pp = 1, dp = 1, chunks = 1;
  LayerStrategy strategy{};
  int microbatch = 1;  // sequences a data-parallel part
  std::int64_t batch = 1, sequence_length = 1;
  Schedule schedule = Schedule::one_f_one_b;
  Precision precision = Precision::bf16;
};
Plan uniform_plan(const ModelSpec& model, const UniformPlan& shape);

}  // namespace optimus
