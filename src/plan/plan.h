// Plan: which device computes which part of the training. Plain data, read by every component that runs,
// simulates, moves or exports a training run.
//
//   batch ─┬─ pipeline 0: micro-batches ── stage 0 ── stage 1 ── …   each stage: devices and chunks of blocks
//          └─ pipeline 1: micro-batches ── stage 0 ── …              each run of blocks: a LayerStrategy
//
// A micro-batch belongs to one pipeline. Inside a stage every layer splits the micro-batch's samples (dp),
// positions (cp) and features (tp) over all devices of the stage: dp = devices / (tp * cp). Ordinary data
// parallelism is a stage of several replicas. Several pipelines are used for devices that differ in speed,
// need pipelines of different depth, or are in different islands.
//
// Devices are virtual; a DeviceMap (cluster) maps them to physical ones. Read next: plan/validate.h (what
// makes a plan valid), plan/plan_json.h (its file), plan/layouts.h (which device stores which parameters).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/operations.h"

namespace optimus {

enum class Schedule { gpipe, one_f_one_b, interleaved, zero_bubble, pipedream, pipemare };
enum class Precision { fp64, fp32, bf16, fp16, fp8 };

// How one layer is split over the devices of its stage. Device i of the stage has tensor-parallel rank i %
// tp, context-parallel rank i / tp % cp, and data-parallel rank i / (tp * cp). In an MoE layer each device
// routes its own positions. `ep` consecutive devices share the experts, regardless of their tp, cp and dp
// ranks: device i stores part i % ep of the experts, and the devices exchange tokens. A single expert is
// never split. An MoE layer with tp above 1 requires sequence_parallel.
struct LayerStrategy {
  int tp = 1;                      // tensor parallel: heads, ffn columns and vocabulary are split
  bool sequence_parallel = false;  // norms and residuals are split by positions over the tp devices
  int cp = 1;                      // context parallel: positions are split, attention is computed in a ring
  int ep = 1;    // expert parallel: devices over which the experts are distributed; 1 for dense models
  int zero = 0;  // ZeRO stage: 0 shards nothing; 1 the optimizer state; 2 also gradients; 3 also parameters
  int shard_group = 0;  // number of devices that share one copy of the state; 0 means all dp * cp devices
  RecomputeMode recompute = RecomputeMode::none;
  // Full recompute: number of consecutive layers that are recomputed together from one saved input.
  int recompute_layers = 1;
  bool offload = false;  // optimizer state is stored in host memory
  bool operator==(const LayerStrategy&) const = default;
};

// Consecutive blocks [first, first + count) of the model with one strategy. Block 0 is the embedding, the
// last block is the head.
struct BlockRun {
  int first_block = 0, count = 0;
  LayerStrategy strategy;
  bool operator==(const BlockRun&) const = default;
};

struct Chunk {
  std::vector<BlockRun> runs;  // adjacent, in the order of the blocks
  int first_block() const { return runs.front().first_block; }
  int end_block() const { return runs.back().first_block + runs.back().count; }
  bool operator==(const Chunk&) const = default;
};

// Chunk c of stage s precedes chunk c of stage s + 1. Chunk c of the last stage precedes chunk c + 1 of the
// first stage.
struct Stage {
  std::vector<int> devices;
  std::vector<Chunk> chunks;  // one chunk, except with the interleaved schedule
  bool operator==(const Stage&) const = default;
};

struct Pipeline {
  std::vector<Stage> stages;
  std::vector<int> microbatches;  // number of sequences in each micro-batch
  bool operator==(const Pipeline&) const = default;
};

// fp8 GEMMs (plan/fp8.h). The blocks listed here compute in fp8 in any precision except fp16. Precision fp8
// is bf16 with some blocks in fp8. Fp8Scaling specifies whether the scales of inputs and gradients come from
// the amax history of a window or from the current tensor of one micro-batch. Scales of weights always come
// from the window.
enum class Fp8Scaling { window, current };
struct Fp8Plan {
  // Block indices in ascending order. If empty, fp8_blocks() chooses them for precision fp8, and other
  // precisions have no fp8 blocks.
  std::vector<int> blocks;
  int window = 16;  // number of steps whose amax values determine a scale
  Fp8Scaling scaling = Fp8Scaling::window;
  bool operator==(const Fp8Plan&) const = default;
};

struct Plan {
  std::string model;   // display name
  int num_blocks = 0;  // layers + 2; in a custom model, the number of its blocks
  std::int64_t batch = 0, sequence_length = 0;
  Schedule schedule = Schedule::one_f_one_b;
  Precision precision = Precision::bf16;
  // Precision in which gradients are accumulated: fp32, or the plan's own precision.
  Precision accumulators = Precision::fp32;
  // If not 0, sharded state has a redundant copy: in each shard group, the owner of shard (s + copy_distance)
  // mod shards also receives the reduced gradient of shard s and repeats the update of that shard.
  int copy_distance = 0;
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
// These functions throw a UserError that names `setting_name` if the word is unknown.
Schedule parse_schedule(const std::string& word, const std::string& setting_name);
Precision parse_precision(const std::string& word, const std::string& setting_name);
RecomputeMode parse_recompute(const std::string& word, const std::string& setting_name);
// True for PipeDream and PipeMare, in which weights change while micro-batches are in flight.
bool is_asynchronous(Schedule schedule);
// Bytes of one stored element. This is 2 for fp8, because only GEMM operands take 1 byte; activations and
// weights are stored in bf16.
int bytes_of(Precision precision);

// Limits of a plan. A larger number of devices or a larger total number of micro-batches is rejected before
// memory is allocated.
inline constexpr int kMaxPlanDevices = 1'000'000, kMaxMicrobatches = 10'000'000;

int num_devices(const Plan& plan);
bool has_device(const Plan& plan, int device);
// One more than the highest device index in the plan.
int num_device_numbers(const Plan& plan);
int data_parallel(const Stage& stage, const LayerStrategy& strategy);  // dp = devices / (tp * cp)
// The number of devices that share one copy of the state.
int shard_count(const Stage& stage, const LayerStrategy& strategy);
// Like shard_count(), but for the experts of an MoE layer: the number of devices that store the same experts
// and share one copy of them. These devices span the shard group, which contains `ep` times fewer copies of
// an expert than of the other parameters.
int expert_shard_count(const Stage& stage, const LayerStrategy& strategy);

// The position of a device in the plan.
struct PlanLocation {
  int pipeline = 0, stage = 0, index = 0;  // index into Stage::devices
  bool operator==(const PlanLocation&) const = default;
};
// Throws UserError if the plan does not contain the device. O(devices).
PlanLocation location_of(const Plan& plan, int device);
const LayerStrategy& strategy_of(const Stage& stage, int block);
// The blocks of the same run that are recomputed together with `block`, starting with the block whose input
// is saved. Contains only `block` if it is not recomputed.
Span recompute_group(const ModelSpec& model, const Stage& stage, int block);

// The parameters of a plan with one pipeline of equal stages: the usual pp x tp x cp x dp grid on devices 0,
// 1, …. Layers are distributed evenly. The embedding is placed with the first layers, the head with the last.
// Micro-batches have dp * microbatch sequences each, except that the last one is smaller if this does not
// divide the batch.
struct UniformPlan {
  int pp = 1, dp = 1, chunks = 1;
  LayerStrategy strategy{};
  int microbatch = 1;  // sequences per data-parallel rank
  std::int64_t batch = 1, sequence_length = 1;
  Schedule schedule = Schedule::one_f_one_b;
  Precision precision = Precision::bf16;
};
Plan uniform_plan(const ModelSpec& model, const UniformPlan& shape);

}  // namespace optimus
