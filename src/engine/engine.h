// The engine: runs one device's step program. There is no other training loop; parallelism changes the plan, and so the
// program, not this.
//
//   Parameters parameters(plan, model, 0, device);
//   parameters.initialize(seed);
//   Engine engine(plan, model, parameters, {.device = device});
//   for (…) report = engine.train_step(read_batch(samples, plan, step, step * plan.batch), {.learning_rate = 3e-4});
//
// All memory of activations is one arena, planned from the program (schedule/program.h, plan_arena) and taken once.
// Today plans of one device run. One thread calls; kernels use threads of their own. Read next: block.h, layer_block.cpp.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/batch.h"
#include "engine/block.h"
#include "engine/parameters.h"
#include "engine/step_graph.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

struct UpdateOptions {
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip = 1;  // the largest gradient norm; 0: any
};

struct StepReport {
  double loss = 0;       // mean over counted targets, before the update
  double grad_norm = 0;  // of the mean loss, before clipping
  std::int64_t num_tokens = 0, num_counted = 0;
  bool is_skipped = false;  // the gradient was not finite: nothing was updated
  double loss_scale = 0;    // fp16 only
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
      make_custom_block{};  // of a custom model (engine/module_block.h)
};

class Engine {
 public:
  // Takes the arena's memory. parameters must outlive the engine. Throws UserError when the plan needs what this engine
  // cannot do.
  Engine(const Plan& plan, const ModelSpec& model, Parameters& parameters, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  StepReport train_step(const Batch& batch, const UpdateOptions& options);
  // Forward only, without dropout: the sum of losses over counted targets.
  double evaluate(const Batch& batch);
  // Logits [rows, vocab] of a batch of one micro-batch; with a cache, of new tokens behind those that it holds.
  at::Tensor logits(const Batch& batch, KeyValueCache* cache = nullptr);

  at::Device device() const { return options_.device; }
  Bytes arena_bytes() const;  // as planned and allocated
  Bytes bytes() const;  // with what products and, as planned, autograd hold beside it; parameters not counted

  // Whether steps are replayed from a recording, or why not.
  std::string recording_note() const;

  // What an update depends on beside parameters: to be saved with them.
  std::int64_t num_updates = 0;
  LossScale loss_scale;

 private:
  void load(const Batch& batch);
  void execute(const Instruction& next, std::size_t index);
  void compute(const Instruction& next, Pass& pass);
  void begin_numbers();
  void run_program();
  bool can_record(const Batch& batch) const;
  void mark_first_passes();
  void pass_gate();
  void update_block(int block);
  StepReport end_step(const Batch& batch);
  void forward_only(const Batch& batch, at::Tensor* all_logits, KeyValueCache* cache);
  void make_passes();

  const Plan plan_;
  const ModelSpec model_;
  Parameters& parameters_;
  const EngineOptions options_;
  const ElementTypes types_;
  const Program program_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<Products> products_;
  at::Tensor arena_;
  Bytes outside_;  // the arena, as planned: autograd's
  at::Tensor numbers_,
      host_numbers_;  // of the step under way (kernels/step_numbers.h), and as the host writes and reads them
  at::Tensor loss_sum_, square_sum_;  // two of them
  Tools tools_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<SlabTensors> slabs_;   // [buffer]
  std::vector<Pass> passes_;         // [instruction]
  std::vector<at::Tensor> cleared_;  // accumulators that each step begins at zero
  std::vector<DeviceMicrobatch> microbatches_;
  StepGraph recording_;

  // Of the step under way.
  UpdateOptions update_;
  std::int64_t num_counted_ = 0;
  double scale_ = 1;
};

}  // namespace optimus
