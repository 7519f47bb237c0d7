// Programs of random plans: they terminate under any timing, respect all dependencies, and do all work
// exactly once.
#include "schedule/program.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "base/random.h"
#include "layout/property.h"
#include "schedule/execute.h"
#include "schedule/order.h"
#include "schedule/picture.h"
#include "schedule/random_case.h"

namespace optimus {
namespace {

// Durations from a keyed random number: some instructions take no time, some a hundred times the usual.
DurationOf random_durations(std::uint64_t seed) {
  return [seed](const Program& program, const Instruction& instruction) {
    const auto index = static_cast<std::uint64_t>(&instruction - program.instructions.data());
    const double u =
        random_uniform(RandomKey(seed).derive(static_cast<std::uint64_t>(program.device)), index);
    return u < 0.1 ? 0.0 : u > 0.9 ? 100 * u : u;
  };
}

TEST(Program, TerminatesInOrderUnderAnyTiming) {
  EXPECT_TRUE(holds("programs", 60, [] {
    const auto [model, plan] = random_case();
    const std::vector<Program> programs = compile_all(plan, model);
    const auto timeline = execute(programs, random_durations(*rc::gen::arbitrary<std::uint64_t>()));
    if (!timeline) RC_FAIL(timeline.error().why);

    // When each device started and finished the forward of block b for micro-batch m.
    using Key = std::tuple<int, int, int>;  // pipeline, micro-batch, block
    std::map<Key, std::map<int, Timeline::Time>> forward, backward;
    double last_backward = 0, first_update = 1e300;
    for (std::size_t p = 0; p < programs.size(); ++p)
      for (std::size_t i = 0; i < programs[p].instructions.size(); ++i) {
        const Instruction& at = programs[p].instructions[i];
        const Timeline::Time time = timeline->times[p][i];
        for (const int wait : programs[p].waits(at))
          RC_ASSERT(timeline->times[p][static_cast<std::size_t>(wait)].end <= time.start);
        const Key key{programs[p].location.pipeline, at.microbatch, at.block};
        const auto note = [&](auto& map) {
          const auto [found, is_new] = map[key].try_emplace(programs[p].device, time);
          found->second.start = std::min(found->second.start, time.start),
          found->second.end = std::max(found->second.end, time.end);
        };
        if (at.op == Op::forward) note(forward);
        if (at.op == Op::backward_input) note(backward);
        if (at.op == Op::backward_weight) last_backward = std::max(last_backward, time.end);
        if (at.op == Op::optimizer) first_update = std::min(first_update, time.start);
      }
    // A device starts a block after every device that has a part of its input has finished the preceding
    // block.
    const auto side = [&](const PlanLocation& location, const Stage& stage, int block) {
      (void)location;
      return Side{static_cast<int>(stage.devices.size()), strategy_of(stage, block)};
    };
    for (const Program& program : programs) {
      const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(program.location.pipeline)];
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(program.location.stage)];
      for (const auto& [key, devices] : forward) {
        const auto [p, m, block] = key;
        if (p != program.location.pipeline || block == 0 || !devices.contains(program.device)) continue;
        for (const Stage& before : pipeline.stages) {
          const bool holds_it =
              std::any_of(before.chunks.begin(), before.chunks.end(), [b = block](const Chunk& chunk) {
                return b - 1 >= chunk.first_block() && b - 1 < chunk.end_block();
              });
          if (!holds_it) continue;
          const int sequences = pipeline.microbatches[static_cast<std::size_t>(m)];
          for (const Route& route :
               routes_in(side(program.location, before, block - 1), side(program.location, stage, block),
                         program.location.index, sequences, plan.sequence_length, model.hidden)) {
            const int peer = before.devices[static_cast<std::size_t>(route.peer)];
            RC_ASSERT(forward.at({p, m, block - 1}).at(peer).end <= devices.at(program.device).start);
            if (block - 1 > 0)
              RC_ASSERT(backward.at({p, m, block}).at(program.device).end <=
                        backward.at({p, m, block - 1}).at(peer).end);
          }
        }
      }
    }
    if (!is_asynchronous(plan.schedule)) RC_ASSERT(last_backward <= first_update);
  }));
}

TEST(Program, DoesAllWorkOnce) {
  EXPECT_TRUE(holds("work", 60, [] {
    const auto [model, plan] = random_case();
    for (const Program& program : compile_all(plan, model)) {
      const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(program.location.pipeline)];
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(program.location.stage)];
      std::map<std::tuple<Op, int, int, Part, int>, int> count;
      for (const Instruction& at : program.instructions)
        if (at.lane == Lane::compute && at.op != Op::optimizer)
          ++count[{at.op, at.microbatch, at.block, at.part, at.ring_step}];
      const auto once = [&](Op op, int m, int block, Part part, int ring_step = -1) {
        const std::tuple key{op, m, block, part, ring_step};
        RC_ASSERT(count[key] == 1);
        count.erase(key);
      };
      const auto second_half = [&](Op op, int m, int block) {
        if (is_mixture_block(model, block))
          once(op, m, block, Part::router), once(op, m, block, Part::experts);
        else
          once(op, m, block, Part::mlp);
      };
      for (int m = 0; m < std::ssize(pipeline.microbatches); ++m)
        for (const Chunk& chunk : stage.chunks)
          for (int block = chunk.first_block(); block < chunk.end_block(); ++block) {
            const LayerStrategy& s = strategy_of(stage, block);
            const bool is_layer = block_kind(model, block) == BlockKind::layer;
            std::vector<Op> passes = {Op::forward};
            if (is_layer && s.recompute == RecomputeMode::full) passes.push_back(Op::recompute);
            if (block > 0) passes.push_back(Op::backward_input);
            for (const Op op : passes) {
              if (!is_layer) {
                once(op, m, block, Part::whole);
              } else if (s.cp == 1) {
                second_half(op, m, block);
                once(op, m, block, Part::attention);
              } else {
                second_half(op, m, block);
                once(op, m, block, Part::attention_input), once(op, m, block, Part::attention_output);
                for (int ring_step = 0; ring_step < s.cp; ++ring_step)
                  once(op, m, block, Part::attention_ring_step, ring_step);
              }
            }
            if (is_layer)
              once(Op::backward_weight, m, block, Part::attention),
                  second_half(Op::backward_weight, m, block);
            else
              once(Op::backward_weight, m, block, Part::whole);
          }
      RC_ASSERT(count.empty());
    }
  }));
}

TEST(Program, SendsEachActivationOnceBetweenStages) {
  EXPECT_TRUE(holds("messages", 60, [] {
    const auto [model, plan] = random_case();
    // (pipeline, sending stage, micro-batch, chunk, is gradient) -> bytes
    std::map<std::tuple<int, int, int, int, bool>, std::int64_t> sent;
    std::int64_t received = 0, total = 0;
    for (const Program& program : compile_all(plan, model)) {
      const Stage& own = plan.pipelines[static_cast<std::size_t>(program.location.pipeline)]
                             .stages[static_cast<std::size_t>(program.location.stage)];
      const auto is_inside = [&](int peer) {
        return std::find(own.devices.begin(), own.devices.end(), peer) != own.devices.end();
      };
      for (const Instruction& at : program.instructions) {
        if (at.op == Op::receive) received += at.bytes;
        if (at.op != Op::send) continue;
        total += at.bytes;
        if (!is_inside(at.peer))
          sent[{program.location.pipeline, program.location.stage, at.microbatch, at.chunk,
                at.is_backward}] += at.bytes;
      }
    }
    RC_ASSERT(total == received);
    for (const auto& [key, bytes] : sent) {
      const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(std::get<0>(key))];
      const int sequences = pipeline.microbatches[static_cast<std::size_t>(std::get<2>(key))];
      RC_ASSERT(bytes == sequences * plan.sequence_length * model.hidden * bytes_of(plan.precision));
    }
  }));
}

TEST(Program, SavedMicrobatchesMatchFormula) {
  EXPECT_TRUE(holds("kept", 60, [] {
    const auto [model, plan] = random_case();
    for (const Program& program : compile_all(plan, model)) {
      const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(program.location.pipeline)];
      const StagePosition at{program.location.stage, static_cast<int>(pipeline.stages.size()),
                             static_cast<int>(pipeline.microbatches.size()),
                             static_cast<int>(pipeline.stages.front().chunks.size())};
      // The weight gradient of a head is never deferred: a stage with only the head saves as few
      // micro-batches as 1F1B.
      const Stage& stage = pipeline.stages[static_cast<std::size_t>(program.location.stage)];
      const bool is_head_only =
          plan.schedule == Schedule::zero_bubble && stage.chunks.front().first_block() == plan.num_blocks - 1;
      RC_ASSERT(max_saved_microbatches(program) ==
                max_saved_microbatches(is_head_only ? Schedule::one_f_one_b : plan.schedule, at));
    }
  }));
}

TEST(Program, DurationMatchesScheduleUnderUnitTimes) {
  // With equal blocks and free communication, the length of the programs equals the length of the drawing.
  for (const Schedule schedule :
       {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zero_bubble})
    for (const int pp : {1, 2, 4})
      for (const int m : {4, 8, 5}) {
        const int chunks = schedule == Schedule::interleaved ? 2 : 1;
        const ModelSpec model = small_model(pp * chunks * 2, false);
        Plan plan = uniform_plan(
            model, {.pp = pp, .chunks = chunks, .batch = m, .sequence_length = 8, .schedule = schedule});
        ASSERT_EQ(find_problem(plan, model), std::nullopt);
        const auto timeline = execute(compile_all(plan, model), [&](const Program&,
                                                                    const Instruction& instruction) {
          // Only layers take time: two layers per chunk, two parts each, a quarter of a unit per part. An
          // undivided backward takes its two units in the input gradient; otherwise its last weight gradient
          // would overlap with the next stage.
          const bool is_layer = instruction.block > 0 && instruction.block < plan.num_blocks - 1;
          if (!is_layer || instruction.lane != Lane::compute || instruction.op == Op::optimizer) return 0.0;
          if (schedule == Schedule::zero_bubble) return 0.25;
          return instruction.op == Op::backward_input    ? 0.5
                 : instruction.op == Op::backward_weight ? 0.0
                                                         : 0.25;
        });
        ASSERT_TRUE(timeline) << timeline.error().why;
        EXPECT_NEAR(timeline->length, unit_times(schedule, pp, m, chunks).length, 1e-9)
            << text(schedule) << " pp " << pp << " m " << m;
      }
}

TEST(Program, MemoryOfSingleDeviceIsExact) {
  const ModelSpec model = small_model(3, true);
  const Plan plan = uniform_plan(model, {.batch = 4, .sequence_length = 8});
  const MemoryUse memory = memory_use(compile(plan, model, 0));
  EXPECT_EQ(memory.weights.value, 2 * num_parameters(model));
  EXPECT_EQ(memory.gradients.value, 4 * num_parameters(model));
  EXPECT_EQ(memory.optimizer.value, 12 * num_parameters(model));
  double saved = 0;
  for (const BlockKind kind : {BlockKind::embedding, BlockKind::layer, BlockKind::head})
    saved += (kind == BlockKind::layer ? 3 : 1) *
             saved_bytes_per_token(model, kind, 8, RecomputeMode::none, 2) * 8;
  // Each tensor begins at a multiple of 256 bytes: at most 14 in a layer, 5 in the head, 1 in the embedding.
  EXPECT_GE(static_cast<double>(memory.activations.value), saved);
  EXPECT_LE(static_cast<double>(memory.activations.value), saved + (3 * 14 + 5 + 1) * 256);
  EXPECT_GE(memory.peak.value, 18 * num_parameters(model) + memory.activations.value);
}

TEST(Program, LiveBuffersDoNotOverlap) {
  EXPECT_TRUE(holds("arena", 40, [] {
    const auto [model, plan] = random_case();
    const Program program = compile(plan, model, plan.pipelines[0].stages[0].devices[0]);
    const Arena arena = plan_arena(program);
    // The owner of each piece of memory, instruction by instruction.
    std::map<int, std::pair<std::size_t, std::size_t>> lives;
    for (std::size_t i = 0; i < program.instructions.size(); ++i)
      for (const Use& use : program.uses(program.instructions[i])) {
        const auto [at, is_new] = lives.try_emplace(use.buffer, i, i);
        at->second.second = i;
      }
    std::int64_t end = 0;
    for (const auto& [a, life] : lives) {
      const std::int64_t begin_a = arena.offsets[static_cast<std::size_t>(a)],
                         end_a = begin_a + program.buffers[static_cast<std::size_t>(a)].bytes.value;
      RC_ASSERT(begin_a >= 0 && begin_a % 256 == 0);
      end = std::max(end, end_a);
      for (const auto& [b, other] : lives) {
        const std::int64_t begin_b = arena.offsets[static_cast<std::size_t>(b)],
                           end_b = begin_b + program.buffers[static_cast<std::size_t>(b)].bytes.value;
        const bool is_together = life.first <= other.second && other.first <= life.second;
        RC_ASSERT(a == b || !is_together || end_a <= begin_b || end_b <= begin_a);
      }
    }
    RC_ASSERT(end <= arena.bytes.value && arena.bytes.value < end + 256);
  }));
}

TEST(Program, DetectsSeededErrors) {
  const ModelSpec model = small_model(4, false);
  const Plan plan = uniform_plan(model, {.pp = 2, .strategy = {.tp = 2}, .batch = 4, .sequence_length = 8});
  const auto no_time = [](const Program&, const Instruction&) { return 0.0; };
  std::vector<Program> programs = compile_all(plan, model);
  ASSERT_TRUE(execute(programs, no_time));
  // A missing receive, and a backward that is waited for before its forward was sent.
  std::vector<Program> lost = programs;
  auto& list = lost[2].instructions;
  list.erase(std::find_if(list.begin(), list.end(),
                          [](const Instruction& instruction) { return instruction.op == Op::receive; }));
  EXPECT_FALSE(execute(lost, no_time));
  std::vector<Program> circle = programs;
  auto& first = circle[0].instructions;
  const auto send = std::find_if(first.begin(), first.end(), [](const Instruction& instruction) {
    return instruction.op == Op::send && instruction.microbatch == 0;
  });
  const auto gradient = std::find_if(first.begin(), first.end(), [](const Instruction& instruction) {
    return instruction.op == Op::receive && instruction.is_backward;
  });
  circle[0].wait_pool.push_back(static_cast<int>(gradient - first.begin()));
  send->waits_begin = static_cast<std::uint32_t>(circle[0].wait_pool.size()) - 1,
  send->waits_end = send->waits_begin + 1;
  const auto stuck = execute(circle, no_time);
  ASSERT_FALSE(stuck);
  EXPECT_NE(stuck.error().why.find("wait in a cycle"), std::string::npos) << stuck.error().why;
}

}  // namespace
}  // namespace optimus
