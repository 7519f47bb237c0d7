// The engine: runs one device's step program. There is no other training loop; parallelism changes the plan, and so the
// program, not this.
//
//   Parameters parameters(plan, model, rank, device);
//   parameters.initialize(seed);
//   Engine engine(plan, model, parameters, {.device = device, .rank = rank, .comm = &comm});
//   for (…) report = engine.train_step(read_batch(samples, plan, step, step * plan.batch, rank), {.learning_rate = 3e-4});
//
// Instructions are executed in the order of the list: computes at once; collectives are begun, and ended before something waits
// for them or follows on their lane, so that they run meanwhile. All memory of activations and of weights on their way is one
// arena, planned from the program (schedule/program.h, plan_arena) and taken once.
// One thread calls; kernels use threads of their own. Read next: block.h, layer_block.cpp, state_exchange.h.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "engine/asynchronous.h"
#include "engine/batch.h"
#include "engine/block.h"
#include "engine/crossing.h"
#include "engine/fp8_scales.h"
#include "engine/instruction_log.h"
#include "engine/instruction_pace.h"
#include "engine/parameters.h"
#include "engine/state_exchange.h"
#include "engine/step_graph.h"
#include "kernels/step_numbers.h"
#include "plan/noise_scale.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

struct UpdateOptions {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip = 1;  // the largest gradient norm; 0: any, as asynchronous schedules need it
  PipeMareOptions pipemare{};
  bool measures_noise = false;  // Engine::noise sees every update; not of asynchronous schedules
};

// What the updates of a step worked with beside gradients and state: whoever has these can repeat them, bit for bit.
struct UpdateFacts {
  UpdateOptions options;
  std::array<double, kNumStepNumbers> numbers{};  // kernels/step_numbers.h
};

struct StepReport {
  double loss = 0;  // mean over counted targets, before the update
  // Of the mean loss, before clipping; asynchronous: the root of the mean square over the updates of the step.
  double grad_norm = 0;
  std::int64_t num_tokens = 0, num_counted = 0;  // of all devices
  bool is_skipped = false;                       // the gradient was not finite: nothing was updated
  double loss_scale = 0;                         // fp16 only
};

struct Evaluation {
  double loss_sum = 0;           // over counted targets of all devices
  std::int64_t num_counted = 0;  // likewise
};

// fp16: the loss is multiplied so that small gradients do not vanish; halved when they overflow, doubled after a while of
// good steps. Losses are sums over tokens, whose logits have gradients of up to 1: 256 is what 256 x tokens is for a mean, and
// 65536 would overflow in any first step.
struct LossScale {
  double value = 256;
  std::int64_t num_good = 0;
  void update(bool is_finite);
};

struct EngineOptions {
  at::Device device{at::kCPU};
  std::int64_t seed = 0;           // of dropout
  std::int64_t num_positions = 0;  // that tokens may have; 0: the plan's sequence length
  bool records_steps = true;       // on CUDA, where that can be (step_graph.h)
  Path product_record{};  // the file that keeps which products were fastest on CUDA; empty: none does
  std::function<std::unique_ptr<Block>(int block, RecomputeMode mode)>
      make_custom_block{};          // of a custom model (engine/module_block.h)
  int rank = 0;                     // the plan's device that this is
  Comm* comm = nullptr;             // to the others, groups connected; none: the plan has one device
  Seconds patience = Seconds(600);  // for any one collective
  // Shows where the rank is, and that it hangs; predicted: seconds of each instruction of a program. None: nobody looks.
  StepBeacon* beacon = nullptr;
  std::function<std::vector<double>(const Plan& plan, const Program& program)> predicted{};
  // Paced devices, to watch schedules on a machine with too few cores: a compute ends no earlier than this after its begin.
  std::function<Seconds(const Instruction& compute)> pace{};
};

// Everybody who works on the plan, among so many ranks: some may be idle.
Group world_of(const Plan& plan, int num_ranks);

// The groups that a device of a plan needs, for Comm::connect, among so many ranks.
std::vector<Group> groups_of(const Program& program, const Plan& plan, int num_ranks);

// Throws UserError, in one sentence, when the plan needs what this engine cannot do.
void ensure_engine_supports(const Plan& plan, const ModelSpec& model);

class Engine {
 public:
  // Takes the arena's memory. parameters must outlive the engine. Throws as ensure_engine_supports.
  Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Every device of the plan calls with its own sequences. Throws UserError where asynchronous updates are to be clipped. A failure leaves the state as it may be: no further step can be taken.
  CommOutcome<StepReport> train_step(const Batch& batch, const UpdateOptions& options);
  // What a step that failed has left of masters and moments. between: the last complete step's state, as it was. at_gate: that too, and
  // all gradients of the failed step are added up here. updating: the gate was passed, some blocks are updated. torn: nobody knows.
  enum class Progress { between, at_gate, updating, torn };
  Progress progress() const { return progress_; }
  // What the devices' sums (and maxima of products in 8 bits) were at the last gate that this rank has passed with a complete step.
  const std::vector<double>& gate_sums() const { return gate_sums_; }
  // Lets go of what is under way with others. No further step can be taken.
  void let_go();
  // Completes a failed step without the others: updating, from what this rank has; at_gate, with the sums of a rank that passed that
  // gate. Masters and moments are then of the step, those of Parameters::copies() too; weights of other devices' shards are not. In no
  // other progress.
  StepReport finish_step(const std::vector<double>& gate_sums = {});
  // When masters have come from elsewhere: weights of other devices' shards, which ZeRO 1 and 2 keep here too.
  CommOutcome<void> gather_weights();
  // Forward only, without dropout.
  CommOutcome<Evaluation> evaluate(const Batch& batch);
  // Logits [rows, vocab] of a batch of one micro-batch; with a cache, of new tokens behind those that it holds. One device.
  at::Tensor logits(const Batch& batch, KeyValueCache* cache = nullptr);

  at::Device device() const { return options_.device; }
  const Program& program() const { return program_; }
  std::vector<Group> groups() const;  // as groups_of
  Bytes arena_bytes() const;          // as planned and allocated
  Bytes bytes() const;  // with what products and, as planned, autograd hold beside it; parameters not counted

  // Whether steps are replayed from a recording, or why not.
  std::string recording_note() const;

  // What an update depends on beside parameters: to be saved with them.
  std::int64_t num_updates = 0;
  LossScale loss_scale;
  NoiseScale noise;
  // Of products in 8 bits; empty where there are none.
  Fp8History fp8_history() const;
  void set_fp8_history(const Fp8History& history);

  // Of the last step. Its reduced gradients stay in Parameters until the next one begins.
  const UpdateFacts& last_update() const { return last_update_; }
  // Called in every step once, when masters and moments are about to change: who reads them on another thread must have ended. Not of
  // asynchronous schedules, which change them all the time, nor on CUDA, where the host runs ahead.
  std::function<void()> before_updates;

  // Where the times of instructions go, while somebody wants them.
  InstructionLog* instruction_log = nullptr;

 private:
  struct Run {
    bool is_forward_only = false;
    at::Tensor* all_logits = nullptr;
    KeyValueCache* cache = nullptr;
  };
  // Where the tensors of a block lie: numbers of buffers, -1 for those that outlive a step.
  struct ViewKey {
    int block = -1, weights = -1, gradients = -1;
    int tied = -1;     // gradients of the embedding's block, for a tied head
    int version = -1;  // of weights, under asynchronous schedules
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
  void clear_between(const std::vector<at::Tensor>& written);
  void begin_numbers(bool is_training);
  bool can_record(const Batch& batch) const;
  StepReport end_step();
  void see_noise(const double* numbers);
  void add_moment_sum();
  CommOutcome<void> run(const Run& how);
  CommOutcome<void> end_before(std::size_t index);
  CommOutcome<void> execute(std::size_t index);
  CommOutcome<void> end(int index);
  void compute(std::size_t index);
  void compute_paced(std::size_t index);
  void take_arrivals(std::size_t index, const Pass& pass);
  std::unique_ptr<Pending> begin_exchange(std::size_t index);
  CommOutcome<void> sum_over_devices();
  CommOutcome<void> agree_on_maxima();
  CommOutcome<void> settle();
  CommOutcome<void> pass_gate();
  CommOutcome<void> run_whole_step(const Batch& batch);
  void update_after_gate(std::size_t index);
  CommOutcome<void> end_updates();
  // What AdamW works on: state with its gradients, and where weights go as they lie in it.
  struct Updated {
    const Parameters& of;
    at::Tensor gradients, weights;
    bool has_whole_weights = false;
  };
  void update_block(int block, const at::Tensor& numbers);
  void repeat_update(std::size_t index);
  void update(int block, const at::Tensor& numbers, const Updated& what);
  void update_at_once(const Instruction& next);
  Pass pass_of(std::size_t index) const;
  StateBuffers buffers_of(std::size_t index) const;
  CommOutcome<void> forward_only(const Batch& batch, const Run& how);

  const Plan plan_;
  const ModelSpec model_;
  Parameters& parameters_;
  const EngineOptions options_;
  const ElementTypes types_;
  const Program program_;
  InstructionPace pace_;
  const Group world_;
  const Pipeline& pipeline_;
  const Stage& stage_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<RingAttention> ring_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<Fp8Scales> fp8_;  // null: no products in 8 bits
  at::Tensor arena_;
  Bytes outside_;  // the arena, as planned: autograd's
  at::Tensor numbers_,
      host_numbers_;  // of the step under way (kernels/step_numbers.h); the host's side of them
  at::Tensor loss_sum_, square_sum_;  // two of them
  Tools tools_;
  std::vector<std::unique_ptr<Block>> blocks_;  // [block]; none where another stage has it
  std::vector<SlabTensors> slabs_;              // [buffer]
  std::vector<at::Tensor> flats_;               // [buffer]: weights, gradients and activations on their way
  std::vector<at::Tensor> leaving_;             // [buffer]: [tokens, width] of those that leave
  std::vector<std::unique_ptr<BlockViews>> views_;
  std::map<ViewKey, const BlockViews*> known_views_;
  std::vector<Pass> passes_;                    // [instruction]
  std::vector<std::vector<int>> cleared_;       // [instruction]: gradients on their way that begin with it
  std::vector<at::Tensor> cleared_sums_;        // accumulators that each step begins at zero
  std::vector<bool> is_forward_;                // [instruction]: of a forward slot
  std::vector<DeviceMicrobatch> microbatches_;  // as in Batch
  Crossings crossings_;
  StateExchange state_;
  WeightVersions versions_;
  MicrobatchUpdates updates_;
  StepGraph recording_;

  // Of the step under way.
  Run how_;
  std::vector<std::unique_ptr<Pending>> under_way_;  // [instruction]
  std::vector<int> last_on_lane_;
  UpdateOptions update_;
  std::int64_t num_counted_ = 0, num_tokens_ = 0;  // of this device
  double scale_ = 1;
  Progress progress_ = Progress::between;
  std::size_t next_update_ = 0;  // updating: instructions from here on
  std::vector<double> gate_sums_;
  UpdateFacts last_update_;
};

}  // namespace optimus
