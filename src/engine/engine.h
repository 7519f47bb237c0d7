// The engine runs the step program of one device. It is the only training loop, because parallelism changes
// the plan and its programs but not the engine.
//
//   Parameters parameters(plan, model, rank, device);
//   parameters.initialize(seed);
//   Engine engine(plan, model, parameters, {.device = device, .rank = rank, .comm = &comm});
//   for (…)
//     report = engine.train_step(read_batch(samples, plan, step, step * plan.batch, rank),
//                                {.learning_rate = 3e-4});
//
// Instructions are executed in list order. Compute instructions run immediately. Collectives are started
// immediately, but completed only before an instruction that waits for them or before the next instruction of
// their lane, so they overlap with computation. All memory for activations and gathered weights is in one
// arena, which is planned from the program (schedule/program.h, plan_arena) and allocated once. Called by one
// thread; kernels use their own threads. Read next: block.h, layer_block.cpp, state_exchange.h.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "engine/asynchronous.h"
#include "engine/batch.h"
#include "engine/block.h"
#include "engine/crossing.h"
#include "engine/fp8_scales.h"
#include "engine/instruction_log.h"
#include "engine/instruction_time_limits.h"
#include "engine/parameters.h"
#include "engine/state_exchange.h"
#include "engine/step_graph.h"
#include "engine/update_options.h"
#include "kernels/step_scalars.h"
#include "plan/noise_scale.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

// Everything besides gradients and state that the updates of a step depend on. With this record, the updates
// can be repeated bit for bit.
struct UpdateRecord {
  UpdateOptions options;
  std::array<double, kNumStepScalars> step_scalars{};  // the step scalars (kernels/step_scalars.h)
};

struct StepReport {
  // Mean loss over all targets that have a loss, before the update.
  double loss = 0;
  // Norm of the gradient of the mean loss, before clipping. Under asynchronous schedules, the root mean
  // square of the norms of the step's updates.
  double grad_norm = 0;
  std::int64_t num_tokens = 0, num_targets = 0;  // summed over all devices
  // Whether the update was skipped because the gradient was not finite.
  bool is_skipped = false;
  double loss_scale = 0;  // used in fp16; 0 in other precisions
};

struct Evaluation {
  double loss_sum = 0;           // over the targets with a loss, on all devices
  std::int64_t num_targets = 0;  // number of these targets
};

// Dynamic loss scaling for fp16. The loss is multiplied by `value`, so that small gradients do not underflow.
// `value` is halved when gradients overflow and doubled after 1000 consecutive steps without overflow. Losses
// are sums over tokens, and the gradients of the logits are at most 1, so 256 here corresponds to 256 x
// tokens for a mean loss. A start value of 65536 would overflow in the first step of every run.
struct LossScale {
  double value = 256;
  std::int64_t num_good_steps = 0;
  void update(bool is_finite);
};

struct EngineOptions {
  at::Device device{at::kCPU};
  std::int64_t seed = 0;  // seed of the dropout masks
  // The RoPE tables cover this many positions, but at least the plan's sequence length.
  std::int64_t num_positions = 0;
  // Whether steps on CUDA are recorded as CUDA graphs where supported (step_graph.h).
  bool records_steps = true;
  // Cache file for the fastest GEMM algorithms on CUDA. If empty, they are not cached.
  Path gemm_algorithm_file{};
  // Creates a block of a custom model (engine/module_block.h). Null for other models.
  std::function<std::unique_ptr<Block>(int block, RecomputeMode mode)> make_custom_block{};
  int rank = 0;  // the device of the plan whose program this engine runs
  // Communication between the devices of the plan, already connected for the groups that groups_of() returns.
  // Null if the plan has one device.
  Comm* comm = nullptr;
  Seconds timeout = Seconds(600);  // timeout of each message and collective
  // Receives each instruction that the rank executes, so that another thread can detect a hang. Null disables
  // monitoring. `predicted_times` returns the expected seconds of each instruction of a program, and may be
  // null.
  StepHeartbeat* step_heartbeat = nullptr;
  std::function<std::vector<double>(const Plan& plan, const Program& program)> predicted_times{};
  // Returns the minimum duration of a compute instruction on a paced device. If an instruction is faster, the
  // device waits. Used to observe schedules on a machine with too few cores. Null disables pacing.
  std::function<Seconds(const Instruction& compute)> min_duration{};
};

// Returns the group of the ranks that have a device of the plan, out of `num_ranks` ranks. The other ranks
// are idle. The member list is empty if no rank is idle.
Group world_of(const Plan& plan, int num_ranks);

// Returns the groups of a device's program, as Comm::connect expects them in a run with `num_ranks` ranks.
std::vector<Group> groups_of(const Program& program, const Plan& plan, int num_ranks);

// If the plan is invalid or needs something that the engine does not support, returns the reason in one
// sentence.
std::optional<std::string> unsupported_reason(const Plan& plan, const ModelSpec& model);
// Throws a UserError with the unsupported_reason(), if there is one.
void ensure_engine_supports(const Plan& plan, const ModelSpec& model);

class Engine {
 public:
  // Allocates the arena. `parameters` must outlive the engine. Throws like ensure_engine_supports.
  Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Runs one training step. Collective: every device of the plan must call it, each with its own sequences.
  // Throws UserError if options.clip is not 0 under an asynchronous schedule. After a failure, the state may
  // be incomplete (see progress()), and no further step can be run.
  CommOutcome<StepReport> train_step(const Batch& batch, const UpdateOptions& options);
  // The state of masters and moments after a failed step:
  //   between   unchanged since the last complete step
  //   at_gate   like between, and this device has all its summed gradients of the failed step
  //   updating  the step gate was passed, and some blocks may already be updated
  //   torn      undefined
  enum class Progress { between, at_gate, updating, torn };
  Progress progress() const { return progress_; }
  // The step scalars that were summed over devices, followed by the amax values of fp8 operands, at the step
  // gate of this rank's last complete step. finish_step() on another rank uses them.
  const std::vector<double>& gate_sums() const { return gate_sums_; }
  // Abandons outstanding communication with other ranks. No further step can be run.
  void release();
  // Completes a failed step without the other ranks. In state updating, it uses this rank's data; in state
  // at_gate, it needs the gate_sums() of a rank that passed the step gate. Afterwards, masters and moments,
  // including those in Parameters::copies(), are those of the completed step, but weights of other devices'
  // shards are not. Not allowed in any other state.
  StepReport finish_step(const std::vector<double>& gate_sums = {});
  // Gathers the weights of other devices' shards, which ZeRO 1 and 2 also store on this device. Must be
  // called after masters were set from outside the engine.
  CommOutcome<void> gather_weights();
  // Computes the loss of `batch` without dropout and without an update. Collective, like train_step().
  CommOutcome<Evaluation> evaluate(const Batch& batch);
  // Returns the logits [rows, vocab] of a batch with one micro-batch. With a `cache`, the batch consists of
  // the new tokens that follow the cached ones. For plans with one device only.
  at::Tensor logits(const Batch& batch, KeyValueCache* cache = nullptr);

  at::Device device() const { return options_.device; }
  const Program& program() const { return program_; }
  std::vector<Group> groups() const;  // groups_of() for this device
  Bytes arena_bytes() const;          // size of the arena
  // Size of the arena, GEMM workspaces, weight versions and the planned memory of autograd. Does not include
  // Parameters.
  Bytes bytes() const;

  // Returns whether steps are replayed from a CUDA graph or, if known, why they are not.
  std::string recording_status() const;

  // State besides the parameters that updates depend on. It must be saved together with the parameters.
  std::int64_t num_updates = 0;
  LossScale loss_scale;
  NoiseScale noise;
  // The amax values of fp8 operands in recent steps (plan/fp8.h). Empty if no layer uses fp8.
  Fp8History fp8_history() const;
  void set_fp8_history(const Fp8History& history);

  // The inputs of the last step's updates, except for the gradients. The reduced gradients stay in Parameters
  // until the next step starts.
  const UpdateRecord& last_update() const { return last_update_; }
  // Called once per step, immediately before masters and moments change. When it returns, other threads must
  // have stopped reading them. Not called with asynchronous schedules, which change this state throughout the
  // step, or on CUDA, where the host runs ahead of the device.
  std::function<void()> before_updates;

  // Records the times of instructions. Null if they are not recorded.
  InstructionLog* instruction_log = nullptr;

 private:
  struct RunMode {
    bool is_forward_only = false;
    at::Tensor* all_logits = nullptr;
    KeyValueCache* cache = nullptr;
  };
  // Identifies the buffers of the program that contain the tensors of a block. -1 stands for tensors that
  // outlive a step (Parameters).
  struct ViewKey {
    int block = -1, weights = -1, gradients = -1;
    int tied = -1;     // gradients of the tied embeddings, for the head
    int version = -1;  // saved weight version (asynchronous schedules); -1 for the current weights
    auto operator<=>(const ViewKey&) const = default;
  };
  void make_blocks();
  void make_memory();
  void make_passes();
  ViewKey add_buffers(const Instruction& instruction, Pass& pass) const;
  const BlockViews* views(const ViewKey& key);
  at::Tensor whole_buffer(int block, int buffer, StateKind kind) const;
  at::Tensor whole_weights(const ViewKey& key) const;
  at::Tensor flat_view(int buffer, std::int64_t offset, std::int64_t count, at::ScalarType type) const;
  void load(const Batch& batch);
  void mark_first_passes();
  void clear_other_ranges(const std::vector<at::Tensor>& written);
  void begin_step_scalars(bool is_training);
  bool can_record(const Batch& batch) const;
  StepReport end_step();
  void update_noise(const double* step_scalars);
  void add_moment_sum();
  CommOutcome<void> run(const RunMode& mode);
  CommOutcome<void> end_before(std::size_t index);
  CommOutcome<void> execute(std::size_t index);
  CommOutcome<void> end(int index);
  void compute(std::size_t index);
  void compute_with_min_duration(std::size_t index);
  void copy_arrivals(std::size_t index, const Pass& pass);
  std::unique_ptr<Pending> begin_exchange(std::size_t index);
  CommOutcome<void> sum_over_devices();
  CommOutcome<void> reduce_maxima();
  CommOutcome<void> synchronize();
  CommOutcome<void> pass_gate();
  CommOutcome<void> run_whole_step(const Batch& batch);
  void update_after_gate(std::size_t index);
  CommOutcome<void> end_updates();
  // The operands of AdamW for a block. `of` has the masters and moments, `gradients` has the same layout, and
  // `weights` receives the results. If `has_whole_weights`, `weights` is laid out as a whole buffer,
  // otherwise as a shard.
  struct UpdateOperands {
    const Parameters& of;
    at::Tensor gradients, weights;
    bool has_whole_weights = false;
  };
  void update_block(int block, const at::Tensor& step_scalars);
  void repeat_update(std::size_t index);
  void update(int block, const at::Tensor& step_scalars, const UpdateOperands& operands);
  void update_immediately(const Instruction& instruction);
  Pass pass_of(std::size_t index) const;
  StateBuffers buffers_of(std::size_t index) const;
  CommOutcome<void> forward_only(const Batch& batch, const RunMode& mode);

  const Plan plan_;
  const ModelSpec model_;
  Parameters& parameters_;
  const EngineOptions options_;
  const ElementTypes types_;
  const Program program_;
  InstructionTimeLimits time_limits_;
  const Group world_;
  const Pipeline& pipeline_;
  const Stage& stage_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<RingAttention> ring_attention_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Fp8Scales> fp8_;  // null if no layer uses fp8
  at::Tensor arena_;
  Bytes autograd_bytes_;  // planned memory of autograd, which is not in the arena
  // Scalars of the current step (kernels/step_scalars.h) and their host copy.
  at::Tensor step_scalars_, host_step_scalars_;
  at::Tensor loss_sum_, square_sum_;  // views of these two elements of step_scalars_
  BlockServices services_;
  std::vector<std::unique_ptr<Block>> blocks_;         // [block]; null for blocks of other stages
  std::vector<ActivationTensors> activation_buffers_;  // [buffer]
  // [buffer]: memory of gathered weights, unreduced gradients and transferred activations
  std::vector<at::Tensor> flat_buffers_;
  std::vector<at::Tensor> outgoing_;  // [buffer]: outgoing activations, [tokens, width]
  std::vector<std::unique_ptr<BlockViews>> views_;
  std::map<ViewKey, const BlockViews*> view_cache_;
  std::vector<Pass> passes_;  // [instruction]
  // [instruction]: buffers of unreduced gradients that are zeroed before this instruction, because no earlier
  // instruction uses them
  std::vector<std::vector<int>> zeroed_buffers_;
  std::vector<at::Tensor> zeroed_sums_;         // accumulators that are zeroed at the start of each step
  std::vector<bool> is_forward_;                // [instruction]: whether it belongs to a forward pass
  std::vector<DeviceMicrobatch> microbatches_;  // in the order of Batch::microbatches
  Crossings crossings_;
  StateExchange state_exchange_;
  WeightVersions weight_versions_;
  MicrobatchUpdates microbatch_updates_;
  StepGraph recording_;

  // State of the current step.
  RunMode mode_;
  std::vector<std::unique_ptr<Pending>> pending_;  // [instruction]: outstanding operations
  std::vector<int> last_on_lane_;
  UpdateOptions update_options_;
  std::int64_t num_targets_ = 0, num_tokens_ = 0;  // on this device
  double step_loss_scale_ = 1;
  Progress progress_ = Progress::between;
  // In state updating: index of the first instruction whose update is still outstanding.
  std::size_t next_update_ = 0;
  std::vector<double> gate_sums_;
  UpdateRecord last_update_;
};

}  // namespace optimus
