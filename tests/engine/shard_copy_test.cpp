// A redundant copy of sharded state (Plan::copy_distance): training with it gives the same result as one
// device, and the copy is bit-identical to the state of the device whose updates it repeats: after steps,
// after skipped steps, and after a step that failed at its gate.
#include <ATen/ops/equal.h>
#include <rapidcheck.h>

#include <array>

#include "engine/equal_training.h"
#include "layout/property.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

constexpr std::array kFields = {&BlockState::masters, &BlockState::first_moment, &BlockState::second_moment};

// Offload is not supported yet, and an embedding that both ends of a stage share must be split equally.
Plan random_plan_with_copies(const ModelSpec& model, int most_devices) {
  for (;;) {
    Plan plan = random_plan::plan_for(
        model, {.most_stages = 2, .most_width = 6, .most_pipelines = 2, .most_microbatches = 3});
    if (is_asynchronous(plan.schedule) || num_devices(plan) > most_devices) continue;
    plan.sequence_length = kLength, plan.precision = plan.accumulators = Precision::fp64;
    for (Pipeline& pipeline : plan.pipelines)
      for (Stage& stage : pipeline.stages) {
        for (Chunk& chunk : stage.chunks)
          for (BlockRun& run : chunk.runs) run.strategy.offload = false;
        if (stage.chunks.front().first_block() == 0 && stage.chunks.back().end_block() == plan.num_blocks)
          stage.chunks.back().runs.back().strategy = stage.chunks.front().runs.front().strategy;
      }
    random_plan::enable_shard_copies(plan, random_plan::pick(1, 5));
    bool has_copies = false;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages)
        for (const Chunk& chunk : stage.chunks)
          for (const BlockRun& run : chunk.runs) has_copies |= run.strategy.zero > 0;
    if (has_copies && !find_problem(plan, model)) return plan;
  }
}

TEST(ShardCopy, AnyPlanMatchesOneDevice) {
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  EXPECT_TRUE(holds("plans", 25, [&] {
    if (testing::Test::HasFailure()) return;
    const std::string preset = *rc::gen::elementOf(presets);
    const int kv_heads = random_plan::pick(1, 3), layers = random_plan::pick(1, 5);
    const int heads = kv_heads * random_plan::pick(2, 3);
    const ModelSpec model = model_of(preset, heads, kv_heads, layers);
    const Plan plan = random_plan_with_copies(model, 8);
    SCOPED_TRACE(
        fmt::format("OPTIMUS_PLAN='{} {} {} {} {}'", preset, heads, kv_heads, layers, to_json(plan).dump()));
    expect_equal_to_one_device(model, plan, 3);
  }));
}

// The ranks of a plan as threads, each with its training state.
struct Member {
  std::unique_ptr<Comm> comm;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Engine> engine;
  std::string problem{};
};

void run_on_ranks(std::vector<Member>& ranks, const std::function<void(Member& rank, int number)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        work(ranks[r], static_cast<int>(r));
      } catch (const std::exception& error) {
        ranks[r].problem = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Member& rank : ranks) EXPECT_EQ(rank.problem, "");
}

std::vector<Member> make_ranks(const ModelSpec& model, const Plan& plan, ThreadWorld& world) {
  std::vector<Member> ranks(static_cast<std::size_t>(num_devices(plan)));
  run_on_ranks(ranks, [&](Member& rank, int number) {
    rank.comm = world.comm(number);
    rank.parameters = std::make_unique<Parameters>(plan, model, number, test_device());
    rank.parameters->initialize(5);
    EngineOptions options{.device = test_device(), .seed = 9};
    options.rank = number, options.comm = rank.comm.get(), options.timeout = Seconds(60);
    rank.engine = std::make_unique<Engine>(plan, model, *rank.parameters, options);
    throw_if_failed(rank.comm->connect(0, rank.engine->groups(), Deadline::after(Seconds(60), "connecting")));
  });
  return ranks;
}

StepReport step(const ModelSpec& model, const Plan& plan, Member& rank, int number, int index) {
  const Batch batch = make_batch(make_samples(index * plan.batch, plan.batch, model.vocab), plan, index,
                                 index * plan.batch, number);
  return value_or_throw(rank.engine->train_step(batch, {.learning_rate = 1e-2}));
}

// The device that owns the shard of a copy.
int owner_of(const Plan& plan, int device, const BlockShape& copied) {
  const PlanLocation location = location_of(plan, device);
  const Stage& stage = plan.pipelines[static_cast<std::size_t>(location.pipeline)]
                           .stages[static_cast<std::size_t>(location.stage)];
  const int tp = stage.chunks.front().runs.front().strategy.tp, group = tp * copied.num_shards;
  return stage.devices[static_cast<std::size_t>(location.index / group * group + copied.shard * tp +
                                                location.index % tp)];
}

// Compares every element of every copy with its owner's. Masters that are weights are compared if both
// devices store them.
void expect_equal_bits(const Plan& plan, const std::vector<Member>& ranks) {
  std::int64_t compared = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Parameters& copies = *ranks[r].parameters->copies();
    for (const LogicalTensor& tensor : copies.tensors()) {
      if (copies.find(tensor.name) == nullptr) continue;
      const BlockShape& shape = copies.shape(copies.block_of(tensor.name));
      const int owner = owner_of(plan, static_cast<int>(r), shape);
      ASSERT_NE(owner, static_cast<int>(r));
      const Parameters& own = *ranks[static_cast<std::size_t>(owner)].parameters;
      const Box box = own.box(tensor.name, &BlockState::first_moment);
      for (at::Tensor BlockState::*const field : kFields) {
        const Parameters* const holder = ranks[r].parameters->holder(tensor.name, field, box);
        ASSERT_NE(holder, nullptr) << tensor.name;
        const auto part = [&](const Parameters& of) {
          at::Tensor values = of.view(tensor.name, field);
          const Box all = of.box(tensor.name, field);
          for (int d = 0; d < box.num_dims; ++d)
            values = values.narrow(d, box[d].begin - all[d].begin, box[d].size());
          return values;
        };
        EXPECT_TRUE(at::equal(part(*holder), part(own)))
            << tensor.name << " of rank " << owner << " beside its copy on rank " << r;
        compared += box.num_elements();
      }
    }
  }
  EXPECT_GT(compared, 0);
}

struct Shape {
  int pp, tp, dp, zero, group, copy_distance;
};
constexpr Shape kShapes[] = {{1, 1, 4, 1, 0, 1}, {1, 1, 3, 2, 0, 2}, {1, 1, 4, 3, 0, 1},
                             {1, 2, 2, 1, 0, 1}, {1, 2, 2, 3, 0, 1}, {1, 1, 4, 1, 2, 1},
                             {1, 1, 4, 3, 2, 1}, {2, 1, 2, 1, 0, 1}, {2, 1, 2, 3, 0, 1}};

Plan plan_of(const ModelSpec& model, const Shape& shape, Precision precision) {
  UniformPlan uniform{.pp = shape.pp, .dp = shape.dp, .batch = 2 * shape.dp, .sequence_length = kLength};
  uniform.strategy.tp = shape.tp, uniform.strategy.zero = shape.zero;
  uniform.strategy.shard_group = shape.group, uniform.precision = precision;
  Plan plan = uniform_plan(model, uniform);
  plan.copy_distance = shape.copy_distance;
  return plan;
}

TEST(ShardCopy, CopiesAreBitIdentical) {
  const ModelSpec model = model_of("llama3-8b", 4, 2);
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp64})
    for (const Shape& shape : kShapes) {
      const Plan plan = plan_of(model, shape, precision);
      SCOPED_TRACE(short_text(plan) + " " + text(precision));
      ASSERT_EQ(find_problem(plan, model), std::nullopt);
      ThreadWorld world(num_devices(plan));
      std::vector<Member> ranks = make_ranks(model, plan, world);
      expect_equal_bits(plan, ranks);  // in the initial state
      run_on_ranks(ranks, [&](Member& rank, int number) {
        for (int index = 0; index < 3; ++index) step(model, plan, rank, number, index);
      });
      expect_equal_bits(plan, ranks);
    }
}

// Tensor parts share key/value heads: rows of one shard are between those of another shard, as padding would
// be.
TEST(ShardCopy, SharedHeadsMatchOneDevice) {
  const ModelSpec model = model_of("llama3-8b", 2, 1);
  for (const int zero : {1, 2, 3})
    expect_equal_to_one_device(model, plan_of(model, {1, 2, 2, zero, 0, 1}, Precision::fp64), 3);
}

// If the loss scale is too large, all ranks skip the step, and so do the copies.
TEST(ShardCopy, CopiesSkipTheSameSteps) {
  const ModelSpec model = model_of("gpt2", 4, 2);
  for (const int zero : {1, 2, 3}) {
    const Plan plan = plan_of(model, {1, 1, 3, zero, 0, 1}, Precision::fp16);
    ThreadWorld world(3);
    std::vector<Member> ranks = make_ranks(model, plan, world);
    std::vector<std::vector<bool>> skipped(3);
    run_on_ranks(ranks, [&](Member& rank, int number) {
      rank.engine->loss_scale.value = 0x1p20;
      for (int index = 0; index < 14; ++index)
        skipped[static_cast<std::size_t>(number)].push_back(
            step(model, plan, rank, number, index).is_skipped);
    });
    EXPECT_TRUE(skipped[0].front()) << "the loss scale was not too large";
    EXPECT_FALSE(skipped[0].back()) << "the loss scale did not decrease";
    expect_equal_bits(plan, ranks);
  }
}

// A Comm that can fail one operation: the gate of a step.
class FailingGateComm final : public Comm {
 public:
  explicit FailingGateComm(Comm& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  CommOutcome<void> connect(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    return inner_.connect(epoch, groups, deadline);
  }
  CommOutcome<void> prepare(int epoch, std::span<const Group> groups, const Deadline& deadline) override {
    return inner_.prepare(epoch, groups, deadline);
  }
  void change_membership(const Membership& membership) override { inner_.change_membership(membership); }
  void shrink(int size) override { inner_.shrink(size); }
  void drop(int epoch) override { inner_.drop(epoch); }
  void abandon(const std::string& reason) override { inner_.abandon(reason); }
  void decline(int epoch, const std::string& reason) override { inner_.decline(epoch, reason); }
  std::unique_ptr<Pending> all_reduce(const Group& group, at::Tensor tensor, ReduceOp kind,
                                      std::string_view what) override {
    std::unique_ptr<Pending> sum = inner_.all_reduce(group, tensor, kind, what);
    if (!fails || what != "loss and gradient norm") return sum;
    return std::make_unique<Failed>(std::move(sum), tensor);
  }
  std::unique_ptr<Pending> all_gather(const Group& group, at::Tensor from, at::Tensor to,
                                      std::string_view what) override {
    return inner_.all_gather(group, from, to, what);
  }
  std::unique_ptr<Pending> reduce_scatter(const Group& group, at::Tensor from, at::Tensor to,
                                          std::string_view what) override {
    return inner_.reduce_scatter(group, from, to, what);
  }
  std::unique_ptr<Pending> broadcast(const Group& group, at::Tensor tensor, int root,
                                     std::string_view what) override {
    return inner_.broadcast(group, tensor, root, what);
  }
  std::unique_ptr<Pending> send(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return inner_.send(peer, tensor, tag, what);
  }
  std::unique_ptr<Pending> receive(int peer, at::Tensor tensor, int tag, std::string_view what) override {
    return inner_.receive(peer, tensor, tag, what);
  }
  std::unique_ptr<Pending> send_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                      std::string_view what) override {
    return inner_.send_ahead(epoch, peer, tensor, tag, what);
  }
  std::unique_ptr<Pending> receive_ahead(int epoch, int peer, at::Tensor tensor, int tag,
                                         std::string_view what) override {
    return inner_.receive_ahead(epoch, peer, tensor, tag, what);
  }
  const FlightLog& flight_log() const override { return inner_.flight_log(); }

  bool fails = false;

 private:
  class Failed final : public Pending {
   public:
    Failed(std::unique_ptr<Pending> inner, at::Tensor sums) : inner_(std::move(inner)), sums_(sums) {}
    bool is_done() override { return inner_->is_done(); }
    CommOutcome<void> wait(const Deadline& deadline) override {
      (void)inner_->wait(deadline);
      sums_.fill_(std::nan(""));  // a partial result arrived
      return tl::unexpected(CommFailure{"the gate", "world", {}, Seconds(0), "injected by the test"});
    }

   private:
    const std::unique_ptr<Pending> inner_;
    at::Tensor sums_;
  };
  Comm& inner_;
};

// All ranks fail at the gate of the third step and complete it separately, with the sums of a rank that
// passed the gate. Their copies then belong to that step, including copies of shards that were never
// gathered.
TEST(ShardCopy, CopiesAreUpdatedAfterFailureAtGate) {
  if (test_device().is_cuda())
    GTEST_SKIP()
        << "on a GPU the host runs ahead, so a step that fails at the gate leaves an undefined state";
  const ModelSpec model = model_of("llama3-8b", 4, 2);
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const Shape& shape : {Shape{1, 1, 4, 1, 0, 1}, Shape{1, 1, 4, 3, 0, 1}, Shape{1, 2, 2, 2, 0, 1}}) {
      const Plan plan = plan_of(model, shape, precision);
      SCOPED_TRACE(short_text(plan) + " " + text(precision));
      ThreadWorld world(4), other_world(4);
      std::vector<Member> whole = make_ranks(model, plan, world), ranks(4);
      run_on_ranks(whole, [&](Member& rank, int number) {
        for (int index = 0; index < 3; ++index) step(model, plan, rank, number, index);
      });
      std::vector<std::unique_ptr<Comm>> inner(4);
      run_on_ranks(ranks, [&](Member& rank, int number) {
        const auto at = static_cast<std::size_t>(number);
        inner[at] = other_world.comm(number);
        auto comm = std::make_unique<FailingGateComm>(*inner[at]);
        FailingGateComm& gate = *comm;
        rank.comm = std::move(comm);
        rank.parameters = std::make_unique<Parameters>(plan, model, number, test_device());
        rank.parameters->initialize(5);
        EngineOptions options{.device = test_device(), .seed = 9};
        options.rank = number, options.comm = rank.comm.get(), options.timeout = Seconds(60);
        rank.engine = std::make_unique<Engine>(plan, model, *rank.parameters, options);
        throw_if_failed(
            rank.comm->connect(0, rank.engine->groups(), Deadline::after(Seconds(60), "connecting")));
        for (int index = 0; index < 2; ++index) step(model, plan, rank, number, index);
        gate.fails = true;
        EXPECT_THROW(step(model, plan, rank, number, 2), PeersLost);
        ASSERT_EQ(rank.engine->progress(), Engine::Progress::at_gate);
        rank.engine->release();
        rank.engine->finish_step(whole[at].engine->gate_sums());
      });
      expect_equal_bits(plan, ranks);
      // The result equals that of the undisturbed training.
      for (std::size_t r = 0; r < ranks.size(); ++r)
        for (const LogicalTensor& tensor : ranks[r].parameters->tensors())
          for (at::Tensor BlockState::*const field : kFields)
            if (const at::Tensor copy = ranks[r].parameters->copies()->view(tensor.name, field);
                copy.defined()) {
              EXPECT_TRUE(at::equal(copy, whole[r].parameters->copies()->view(tensor.name, field)));
            }
    }
}

}  // namespace
}  // namespace optimus
