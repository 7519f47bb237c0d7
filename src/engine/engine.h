// The engine runs the step program of one device. It is the only training loop: parallelism changes the plan
// and thereby the program, not the engine.
//
//   Parameters parameters(plan, model, rank, device);
//   parameters.initialize(seed);
//   Engine engine(plan, model, parameters, {.device = device, .rank = rank, .comm = &comm});
//   for (…)
//     report = engine.train_step(read_batch(samples, plan, step, step * plan.batch, rank),
//                                {.learning_rate = 3e-4});
//
// Instructions are executed in list order. Compute instructions run immediately. Collectives are started, and
// completed before an instruction that waits for them or the next instruction of their lane, so that they
// overlap with computation. All memory for activations and gathered weights is one arena, planned from the
// program (schedule/program.h, plan_arena) and allocated once. One thread calls; kernels use their own
// threads. Read next: block.h, layer_block.cpp, state_exchange.h.
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

// Everything that the updates of a step depend on besides gradients and state. It suffices to repeat them bit
// for bit.
struct UpdateRecord {
  UpdateOptions options;
  std::array<double, kNumStepScalars> numbers{};  // kernels/step_scalars.h
};

struct StepReport {
  double loss = 0;  // mean over counted targets, before the update
  // Norm of the gradient of the mean loss, before clipping; asynchronous: root mean square over the updates
  // of the step.
  double grad_norm = 0;
  std::int64_t num_tokens = 0, num_targets = 0;  // of all devices
  bool is_skipped = false;                       // the gradient was not finite; nothing was updated
  double loss_scale = 0;                         // fp16 only
};

struct Evaluation {
  double loss_sum = 0;           // sum over counted targets of all devices
  std::int64_t num_targets = 0;  // number of counted targets of all devices
};

// fp16: the factor of the loss that keeps small gradients from underflowing. It is halved when gradients
// overflow and doubled after a number of good steps. Losses are sums over tokens, and the gradients of their
// logits are at most 1, so 256 here corresponds to 256 x tokens for a mean loss; 65536 would overflow in
// every first step.
struct LossScale {
  double value = 256;
  std::int64_t num_good_steps = 0;
  void update(bool is_finite);
};

struct EngineOptions {
  at::Device device{at::kCPU};
  std::int64_t seed = 0;           // of dropout
  std::int64_t num_positions = 0;  // number of positions that tokens may have; 0: the plan's sequence length
  bool records_steps = true;       // on CUDA, record steps as CUDA graphs where supported (step_graph.h)
  Path gemm_algorithm_file{};      // file that stores the fastest GEMM algorithms on CUDA; empty: not stored
  std::function<std::unique_ptr<Block>(int block, RecomputeMode mode)>
      make_custom_block{};  // for custom models (engine/module_block.h)
  int rank = 0;             // the device of the plan that this engine runs
  // connects the devices of the plan, with groups connected; null: the plan has one device
  Comm* comm = nullptr;
  Seconds timeout = Seconds(600);  // for each collective
  // Receives the current position of the rank, which reveals a hang; null: no monitoring. predicted: the
  // expected seconds of each instruction of a program.
  StepHeartbeat* step_heartbeat = nullptr;
  std::function<std::vector<double>(const Plan& plan, const Program& program)> predicted{};
  // Paced devices, for observing schedules on a machine with too few cores: a compute instruction takes at
  // least this long.
  std::function<Seconds(const Instruction& compute)> pace{};
};

// The group of all ranks that participate in the plan, out of num_ranks ranks; the others are idle.
Group world_of(const Plan& plan, int num_ranks);

// The groups that a device of a plan needs, for Comm::connect, given num_ranks ranks in total.
std::vector<Group> groups_of(const Program& program, const Plan& plan, int num_ranks);

// The reason, in one sentence, if the plan is not valid or needs something that this engine does not support.
std::optional<std::string> unsupported_reason(const Plan& plan, const ModelSpec& model);
// Refuses the user's plan: throws the reason as a UserError.
void ensure_engine_supports(const Plan& plan, const ModelSpec& model);

class Engine {
 public:
  // Allocates the arena. parameters must outlive the engine. Throws like ensure_engine_supports.
  Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Collective: every device of the plan calls it with its own sequences. Throws UserError if asynchronous
  // updates are to be clipped. After a failure the state may be incomplete and no further step can be run.
  CommOutcome<StepReport> train_step(const Batch& batch, const UpdateOptions& options);
  // The state of masters and moments after a failed step. between: unchanged since the last complete step.
  // at_gate: the same, and all gradients of the failed step are summed on this device. updating: the gate was
  // passed and some blocks are updated. torn: undefined.
  enum class Progress { between, at_gate, updating, torn };
  Progress progress() const { return progress_; }
  // The sums over devices (and maxima of fp8 GEMMs) at the last gate that this rank passed in a complete
  // step.
  const std::vector<double>& gate_sums() const { return gate_sums_; }
  // Abandons outstanding communication with other ranks. No further step can be run.
  void release();
  // Completes a failed step without the other ranks: in state updating, from this rank's own data; in state
  // at_gate, with the sums of a rank that passed that gate. Masters and moments, including those of
  // Parameters::copies(), are then those of the step; weights of other devices' shards are not. Not allowed
  // in any other state.
  StepReport finish_step(const std::vector<double>& gate_sums = {});
  // Call after masters were set from elsewhere: gathers the weights of other devices' shards, which ZeRO 1
  // and 2 also store here.
  CommOutcome<void> gather_weights();
  // Forward only, without dropout.
  CommOutcome<Evaluation> evaluate(const Batch& batch);
  // Logits [rows, vocab] of a batch with one micro-batch; with a cache, of the new tokens that follow the
  // cached ones. One device only.
  at::Tensor logits(const Batch& batch, KeyValueCache* cache = nullptr);

  at::Device device() const { return options_.device; }
  const Program& program() const { return program_; }
  std::vector<Group> groups() const;  // as groups_of
  Bytes arena_bytes() const;          // as planned and allocated
  Bytes bytes() const;  // arena, GEMM workspace and the planned memory of autograd; without parameters

  // Reports whether steps are replayed from a CUDA graph, or why not.
  std::string recording_status() const;

  // State that updates depend on besides parameters. It must be saved with them.
  std::int64_t num_updates = 0;
  LossScale loss_scale;
  NoiseScale noise;
  // History of fp8 GEMMs; empty if there are none.
  Fp8History fp8_history() const;
  void set_fp8_history(const Fp8History& history);

  // Data of the last step's update. The reduced gradients stay in Parameters until the next step begins.
  const UpdateRecord& last_update() const { return last_update_; }
  // Called once per step, immediately before masters and moments change: other threads must have stopped
  // reading them. Not called with asynchronous schedules, which change them throughout the step, nor on CUDA,
  // where the host runs ahead of the device.
  std::function<void()> before_updates;

  // Receives the times of instructions; null: not recorded.
  InstructionLog* instruction_log = nullptr;

 private:
  struct RunMode {
    bool is_forward_only = false;
    at::Tensor* all_logits = nullptr;
    KeyValueCache* cache = nullptr;
  };
  // Identifies the buffers that hold the tensors of a block; -1: buffers that outlive a step.
  struct ViewKey {
    int block = -1, weights = -1, gradients = -1;
    int tied = -1;     // gradients of the embedding block, for a tied head
    int version = -1;  // weight version, under asynchronous schedules
    auto operator<=>(const ViewKey&) const = default;
  };
  void make_blocks();
  void make_memory();
  void make_passes();
  ViewKey add_buffers(const Instruction& instruction, Pass& pass) const;
  const BlockViews* views(const ViewKey& key);
  at::Tensor whole(int block, int buffer, StateKind kind) const;
  at::Tensor whole_weights(const ViewKey& key) const;
  at::Tensor flat(int buffer, std::int64_t offset, std::int64_t count, at::ScalarType type) const;
  void load(const Batch& batch);
  void mark_first_passes();
  void clear_other_ranges(const std::vector<at::Tensor>& written);
  void begin_numbers(bool is_training);
  bool can_record(const Batch& batch) const;
  StepReport end_step();
  void update_noise(const double* numbers);
  void add_moment_sum();
  CommOutcome<void> run(const RunMode& mode);
  CommOutcome<void> end_before(std::size_t index);
  CommOutcome<void> execute(std::size_t index);
  CommOutcome<void> end(int index);
  void compute(std::size_t index);
  void compute_paced(std::size_t index);
  void copy_arrivals(std::size_t index, const Pass& pass);
  std::unique_ptr<Pending> begin_exchange(std::size_t index);
  CommOutcome<void> sum_over_devices();
  CommOutcome<void> reduce_maxima();
  CommOutcome<void> synchronize();
  CommOutcome<void> pass_gate();
  CommOutcome<void> run_whole_step(const Batch& batch);
  void update_after_gate(std::size_t index);
  CommOutcome<void> end_updates();
  // The operands of AdamW: state with its gradients, and the destination of the weights in the same order.
  struct Updated {
    const Parameters& of;
    at::Tensor gradients, weights;
    bool has_whole_weights = false;
  };
  void update_block(int block, const at::Tensor& numbers);
  void repeat_update(std::size_t index);
  void update(int block, const at::Tensor& numbers, const Updated& updated);
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
  std::unique_ptr<RingAttention> ring_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<Fp8Scales> fp8_;  // null: no fp8 GEMMs
  at::Tensor arena_;
  Bytes autograd_bytes_;  // planned memory of autograd, outside the arena
  at::Tensor numbers_,
      host_numbers_;  // numbers of the current step (kernels/step_scalars.h) and their host copy
  at::Tensor loss_sum_, square_sum_;  // two elements
  BlockServices services_;
  std::vector<std::unique_ptr<Block>> blocks_;         // [block]; null for blocks of other stages
  std::vector<ActivationTensors> activation_buffers_;  // [buffer]
  // [buffer]: gathered weights, unreduced gradients and transferred activations
  std::vector<at::Tensor> flats_;
  std::vector<at::Tensor> outgoing_;  // [buffer]: outgoing activations, [tokens, width]
  std::vector<std::unique_ptr<BlockViews>> views_;
  std::map<ViewKey, const BlockViews*> view_cache_;
  std::vector<Pass> passes_;  // [instruction]
  // [instruction]: buffers of unreduced gradients that start at this instruction
  std::vector<std::vector<int>> cleared_;
  std::vector<at::Tensor> cleared_sums_;        // accumulators that are zeroed at the start of each step
  std::vector<bool> is_forward_;                // [instruction]: belongs to a forward slot
  std::vector<DeviceMicrobatch> microbatches_;  // in the order of Batch
  Crossings crossings_;
  StateExchange state_;
  WeightVersions versions_;
  MicrobatchUpdates updates_;
  StepGraph recording_;

  // State of the current step.
  RunMode mode_;
  std::vector<std::unique_ptr<Pending>> pending_;  // [instruction]: outstanding operations
  std::vector<int> last_on_lane_;
  UpdateOptions update_;
  std::int64_t num_counted_ = 0, num_tokens_ = 0;  // on this device
  double scale_ = 1;
  Progress progress_ = Progress::between;
  std::size_t next_update_ = 0;  // in state updating: index of the first instruction whose update is not done
  std::vector<double> gate_sums_;
  UpdateRecord last_update_;
};

}  // namespace optimus
