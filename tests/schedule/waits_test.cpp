// No program misses a wait: every instruction reads complete data, under any timing. The required
// dependencies are stated here a second time, pair by pair, from the meaning of the instructions and
// independently of the compiler. program_test.cpp checks that programs terminate and do all their work.
#include <gtest/gtest.h>

#include "layout/property.h"
#include "schedule/program.h"
#include "schedule/random_case.h"

namespace optimus {
namespace {

// behind[i][j]: i cannot start before j has completed, because of waits and in-order lanes.
std::vector<std::vector<bool>> behind(const Program& program) {
  const std::size_t n = program.instructions.size();
  std::vector<std::vector<bool>> result(n, std::vector<bool>(n));
  std::map<Lane, std::size_t> last_of_lane;
  for (std::size_t i = 0; i < n; ++i) {
    const Instruction& at = program.instructions[i];
    const auto follow = [&](std::size_t before) {
      for (std::size_t j = 0; j < before; ++j)
        if (result[before][j]) result[i][j] = true;
      result[i][before] = true;
    };
    for (const int wait : program.waits(at)) follow(static_cast<std::size_t>(wait));
    if (at.lane == Lane::transfer) continue;
    if (const auto last = last_of_lane.find(at.lane); last != last_of_lane.end()) follow(last->second);
    last_of_lane[at.lane] = i;
  }
  return result;
}

bool is_one_of(Op op, std::initializer_list<Op> ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// Activations and their gradients of one micro-batch. A collective of a later pass over the same block
// (recompute, a gather for the weight gradient) comes later in the list and is excluded.
bool reads_activation(const Plan& plan, const Instruction& later, const Instruction& earlier,
                      bool stands_before) {
  const int head = plan.num_blocks - 1;
  if (earlier.op == Op::load_batch)
    return later.op == Op::forward && (later.block == 0 || later.block == head);
  if (earlier.microbatch != later.microbatch) return false;
  const bool is_collective = earlier.lane == Lane::tensor && stands_before;
  // A receive carries the block that it is for; inside a stage, the block that it comes from.
  const bool is_arrival = earlier.block == later.block && stands_before;
  const bool is_first_backward =
      later.op == Op::backward_input || (later.op == Op::backward_weight && later.block == 0);
  if (later.op == Op::backward_input && later.block == head && earlier.block == head && !earlier.is_backward)
    return earlier.op == Op::all_reduce || earlier.op == Op::forward;  // the sums over all logits
  if (later.op == Op::forward && !earlier.is_backward) {
    if (earlier.op == Op::receive) return is_arrival || earlier.block == later.block - 1;
    return earlier.block == later.block - 1 && (is_collective || earlier.op == Op::forward);
  }
  if (is_first_backward && earlier.is_backward) {
    if (earlier.op == Op::receive) return is_arrival || earlier.block == later.block + 1;
    return earlier.block == later.block + 1 &&
           (earlier.lane == Lane::tensor || earlier.op == Op::backward_input);
  }
  if (later.op == Op::send && earlier.block == later.block && earlier.is_backward == later.is_backward)
    return is_collective || earlier.op == (later.is_backward ? Op::backward_input : Op::forward);
  return false;
}

// Gradients before the update. Without steps every micro-batch has its own update.
bool reads_gradient(const Plan& plan, const Instruction& later, const Instruction& earlier) {
  if (is_asynchronous(plan.schedule) && earlier.microbatch != later.microbatch) return false;
  const bool is_same_block = earlier.block == later.block;
  const bool is_own_sum = is_same_block && is_one_of(earlier.op, {Op::backward_weight, Op::reduce_gradients});
  if (later.op == Op::reduce_gradients)
    return is_same_block && earlier.op == Op::backward_weight && earlier.microbatch == later.microbatch;
  if (later.op == Op::sync_gradients) return is_own_sum;
  // a tied embedding is summed as block 0 and is part of the head's shard too
  if (later.op == Op::send_copy) {
    const bool is_tied_block = earlier.block == 0 && later.block == plan.num_blocks - 1;
    return is_own_sum || (earlier.op == Op::sync_gradients && (is_same_block || is_tied_block));
  }
  if (later.op == Op::step_gate)
    return is_one_of(earlier.op,
                     {Op::backward_weight, Op::reduce_gradients, Op::sync_gradients, Op::receive_copy});
  if (later.op == Op::optimizer)
    return is_own_sum || is_one_of(earlier.op, {Op::step_gate, Op::sync_gradients, Op::receive_copy});
  return false;
}

// Whether a gather writes data that an instruction reads. Gathers come early in the list, also before other
// uses of their block.
bool writes_for(const Program& program, const Instruction& gather, const Instruction& later) {
  for (const Use& written : program.uses(gather))
    for (const Use& read : program.uses(later))
      if (written.buffer == read.buffer) return true;
  return false;
}

// Weights: gathered before use, and with asynchronous schedules updated in between. PipeDream's backward uses
// the stored weights of its forward.
bool reads_weights(const Plan& plan, const Program& program, const Instruction& later,
                   const Instruction& earlier, bool stands_before) {
  if (earlier.block != later.block) return false;
  if (earlier.op == Op::gather_parameters && !is_asynchronous(plan.schedule))
    return later.lane == Lane::compute && writes_for(program, earlier, later);
  if (later.op == Op::gather_parameters) return earlier.op == Op::optimizer && stands_before;
  const bool uses_newest =
      later.op == Op::forward ||
      (is_one_of(later.op, {Op::recompute, Op::backward_input}) && plan.schedule != Schedule::pipedream);
  return uses_newest && stands_before && is_one_of(earlier.op, {Op::optimizer, Op::gather_parameters});
}

// The first pair in which the later instruction could start too early; "" if there is no such pair.
std::string missing_wait(const Plan& plan, const Program& program) {
  const auto order = behind(program);
  const std::vector<Instruction>& list = program.instructions;
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t j = 0; j < list.size(); ++j) {
      if (i == j || order[i][j]) continue;
      if (reads_activation(plan, list[i], list[j], j < i) || reads_gradient(plan, list[i], list[j]) ||
          reads_weights(plan, program, list[i], list[j], j < i))
        return fmt::format("device {}, {}: {} of block {} (number {}) does not wait for {} (number {})",
                           program.device, text(plan.schedule), text(list[i].op), list[i].block, i,
                           text(list[j].op), j);
    }
  return "";
}

TEST(Waits, NoReadBeforeCompletion) {
  EXPECT_TRUE(holds("waits", 100, [] {
    auto [model, plan] = random_case();
    if (random_plan::pick(0, 1) == 1 && !is_asynchronous(plan.schedule) && !model.is_mixture())
      random_plan::enable_shard_copies(plan, random_plan::pick(1, 3));
    for (const Program& program : compile_all(plan, model)) {
      const std::string missing = missing_wait(plan, program);
      if (!missing.empty()) RC_FAIL(missing);
    }
  }));
}

// Checks the property above: if all waits of one kind of instruction are removed, it must fail.
TEST(Waits, DetectsMissingWait) {
  const ModelSpec model = small_model(2, true);
  Plan plan = uniform_plan(
      model, {.pp = 2, .dp = 2, .strategy = {.tp = 2, .zero = 1}, .batch = 8, .sequence_length = 8});
  plan.copy_distance = 1;
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  for (const Op op : {Op::forward, Op::backward_input, Op::send, Op::reduce_gradients, Op::send_copy,
                      Op::step_gate, Op::optimizer, Op::gather_parameters}) {
    bool is_found = false;
    for (Program program : compile_all(plan, model)) {
      EXPECT_EQ(missing_wait(plan, program), "");
      for (Instruction& at : program.instructions)
        if (at.op == op) at.waits_end = at.waits_begin;
      is_found |= !missing_wait(plan, program).empty();
    }
    EXPECT_TRUE(is_found) << text(op);
  }
}

}  // namespace
}  // namespace optimus
