// import(export(plan)) equals the plan; typical scripts; malicious text.
#include "plan/import.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "base/temporary_folder.h"
#include "plan/export.h"
#include "plan/import_build.h"
#include "plan/plan_json.h"
#include "plan/shell_words.h"
#include "plan/uniform_case.h"

namespace optimus {
namespace {

std::string text_of(const ExportedPlan& exported, const std::string& name) {
  for (const ExportedFile& file : exported.files)
    if (file.name == name) return file.text;
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ImportMegatron, RoundTripsExportedPlans) {
  EXPECT_TRUE(rc::check([] {
    const uniform_case::Case given = uniform_case::any();
    const ExportSettings settings{
        .devices_per_node = random_plan::pick(1, 9), .data = "a'b c", .tokenizer = "$x }"};
    const ExportedPlan exported = export_plan(given.plan, given.model, Trainer::megatron, settings);
    ImportedPlan back = import_plan(text_of(exported, "launch.sh"), "launch.sh", {});
    RC_ASSERT(back.unknown.empty());
    RC_ASSERT(back.model == given.model);
    Plan expected = given.plan;
    const auto is_told = [](const std::string& note) {
      return contains(note, "Megatron-LM computes all layers in fp8");
    };
    if (std::any_of(exported.notes.begin(), exported.notes.end(), is_told)) {
      RC_ASSERT(given.plan.precision == Precision::fp8);
      expected.fp8.blocks.clear();
      for (int block = 1; block < expected.num_blocks - 1; ++block) expected.fp8.blocks.push_back(block);
    }
    RC_ASSERT(plan_text(back.plan) == plan_text(expected));
    RC_ASSERT(back.plan == expected);
  }));
}

// The same for DeepSpeed, with the number of devices from the user and without properties that DeepSpeed
// cannot express.
TEST(ImportDeepSpeed, RoundTripsExportedPlans) {
  EXPECT_TRUE(rc::check([] {
    uniform_case::Case given = uniform_case::any();
    UniformPlan& shape = given.shape;
    LayerStrategy& s = shape.strategy;
    shape.chunks = 1, shape.schedule = Schedule::one_f_one_b;
    if (shape.precision == Precision::fp8) shape.precision = Precision::bf16;
    const int way = random_plan::pick(0, 2);  // 0: pipeline, 1: tensor parallelism, 2: context parallelism
    if (way != 0) shape.pp = 1;
    if (way != 1) s.tp = 1;
    s.cp = way == 2 ? *rc::gen::element(1, 2, 4) : 1;
    s.sequence_parallel = false;
    if (s.recompute == RecomputeMode::selective) s.recompute = RecomputeMode::none;
    s.zero = std::min(s.zero, way == 0 ? 1 : way == 1 ? 2 : 3);
    s.shard_group = 0;
    if (s.zero == 3 && shape.dp == 4 && random_plan::pick(0, 1) == 1) s.shard_group = 2;
    s.offload = s.offload && s.zero > 0;
    while (given.model.kv_heads % s.tp != 0) s.tp /= 2;
    shape.sequence_length = 64;
    const Plan plan = uniform_plan(given.model, shape);
    const ExportedPlan exported = export_plan(plan, given.model, Trainer::deepspeed);
    ImportRequest request{.model = given.model, .devices = num_devices(plan), .sequence_length = 64};
    const ImportedPlan back = import_plan(text_of(exported, "ds_config.json"), "ds_config.json", request);
    RC_ASSERT(back.unknown.empty());
    RC_ASSERT(plan_text(back.plan) == plan_text(plan));
  }));
}

// Megatron-LM's defaults if only the format is given, and its options that a plan cannot express.
TEST(ImportMegatron, ReadsFp8Recipes) {
  const auto imported = [](const std::string& flags) {
    return import_plan(
        "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 --max-position-embeddings "
        "128 "
        "--micro-batch-size 1 --global-batch-size 4 --bf16 " +
            flags,
        "args.txt", {.devices = 2});
  };
  const ImportedPlan usual = imported("--fp8-format hybrid");
  EXPECT_EQ(usual.plan.fp8, (Fp8Plan{.blocks = {1, 2, 3, 4, 5, 6, 7, 8}, .window = 1}));
  EXPECT_TRUE(usual.notes.empty());
  const ImportedPlan recent = imported("--fp8-format hybrid --fp8-amax-history-len 64");
  EXPECT_EQ(recent.plan.fp8.window, 1) << "uses the most recent of 64 steps";
  EXPECT_TRUE(imported("--fp8-format hybrid --fp8-amax-history-len 4096").notes.empty());
  const ImportedPlan long_window =
      imported("--fp8-format hybrid --fp8-amax-history-len 4096 --fp8-amax-compute-algo max");
  EXPECT_EQ(long_window.plan.fp8.window, 1024);
  EXPECT_EQ(long_window.notes,
            (std::vector<std::string>{"the amax history covers 1024 steps instead of 4096"}));
  const ImportedPlan cut =
      imported("--fp8-format hybrid --fp8-recipe tensorwise --tensor-model-parallel-size 2");
  EXPECT_EQ(cut.plan.fp8.scaling, Fp8Scaling::window);
  ASSERT_EQ(cut.notes.size(), 1U);
  EXPECT_NE(cut.notes[0].find("needs tp 1 and cp 1"), std::string::npos) << cut.notes[0];
  const ImportedPlan blocks = imported("--fp8-format e4m3 --fp8-recipe blockwise --first-last-layers-bf16");
  EXPECT_EQ(blocks.plan.fp8, Fp8Plan());
  EXPECT_EQ(blocks.notes.size(), 2U);
  const ImportedPlan none =
      imported("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-end-in-bf16 9");
  EXPECT_EQ(none.plan.precision, Precision::bf16);
  EXPECT_EQ(
      imported(
          "--fp8-format hybrid --grad-reduce-in-bf16 --first-last-layers-bf16 --num-layers-at-end-in-bf16 9")
          .plan.accumulators,
      Precision::bf16)
      << "as without fp8";
  EXPECT_EQ(imported("--fp8-recipe delayed").plan.fp8, Fp8Plan()) << "without a format there is no fp8";
}

// Partial recompute round-trips if every stage recomputes the same number of layers.
TEST(ImportMegatron, ReadsBlockRecompute) {
  const std::string line =
      "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 --max-position-embeddings "
      "128 "
      "--seq-length 128 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 4 "
      "--recompute-granularity full --recompute-method block --recompute-num-layers 3";
  const ImportedPlan imported = import_plan(line, "args.txt", {.devices = 2});
  const std::vector<BlockRun>& runs = imported.plan.pipelines[0].stages[1].chunks[0].runs;
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].count, 3);
  EXPECT_EQ(runs[0].strategy.recompute, RecomputeMode::full);
  EXPECT_EQ(runs[1].strategy.recompute, RecomputeMode::none);
  const ExportedPlan exported = export_plan(imported.plan, imported.model, Trainer::megatron);
  EXPECT_EQ(import_plan(text_of(exported, "launch.sh"), "launch.sh", {}).plan, imported.plan);
}

// In the style of the scripts in Megatron-LM's repository.
constexpr const char* kScript = R"(#!/bin/bash
# Runs the "175B" parameter model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
MASTER_ADDR=localhost
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
TP=8

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
)
GPT_MODEL_ARGS=(
    --num-layers 96   # as in the paper
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
)
OPTIONS=" \
  --tensor-model-parallel-size ${TP} \
  --pipeline-model-parallel-size=16 \
  --num-layers-per-virtual-pipeline-stage ${VPP:-2}"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} $OPTIONS \
    --micro-batch-size 1 --global-batch-size $((WORLD_SIZE*12)) --rampup-batch-size 16 16 5859375 \
    --tokenizer-type GPT2BPETokenizer --fp16 --attention-dropout 0 --hidden-dropout 0 \
    --data-path ${DATA_PATH} --frobnicate 3 2>&1 | tee "log $(date).txt"
)";

TEST(ImportMegatron, ReadsTypicalScripts) {
  const ImportedPlan imported = import_plan(kScript, "175b.sh", {});
  EXPECT_EQ(imported.model.name, "gpt3-175b");
  EXPECT_EQ(num_devices(imported.plan), 128);
  const Pipeline& pipeline = imported.plan.pipelines.front();
  EXPECT_EQ(pipeline.stages.size(), 16U);
  EXPECT_EQ(pipeline.stages[0].chunks.size(), 3U);
  EXPECT_EQ(pipeline.stages[0].chunks[0].runs[0].strategy.tp, 8);
  EXPECT_EQ(imported.plan.batch, 1536);
  EXPECT_EQ(imported.plan.schedule, Schedule::interleaved);
  EXPECT_EQ(imported.plan.precision, Precision::fp16);
  EXPECT_EQ(imported.unknown, std::vector<std::string>{"--frobnicate 3"});
  ASSERT_EQ(imported.notes.size(), 1U);
  EXPECT_TRUE(contains(imported.notes[0], "final size"));
}

TEST(ImportMegatron, ReportsMissingArgumentInOneLine) {
  const auto why = [](const std::string& text, const ImportRequest& request = {}) {
    return message_of([&] { import_plan(text, "a.sh", request); });
  };
  const std::string shape =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64 ";
  EXPECT_TRUE(contains(why("echo hello"), "a.sh: found no training program"));
  EXPECT_TRUE(contains(why("--hidden-size 64"), "--num-layers is missing"));
  EXPECT_TRUE(contains(why(shape), "--vocab N"));
  EXPECT_TRUE(contains(why(shape + "--vocab-size 100"), "specify --devices N"));
  EXPECT_TRUE(contains(why(shape + "--vocab-size 100 --tensor-model-parallel-size $TP", {.devices = 4}),
                       "--tensor-model-parallel-size: expected an integer of at least 1, got '$TP'"));
  EXPECT_TRUE(contains(why(shape + "--vocab-size 100 --tensor-model-parallel-size 3", {.devices = 4}),
                       "4 devices are not divisible by tp 3"));
  EXPECT_TRUE(
      contains(why(shape + "--vocab-size 100 --normalization RMSNorm", {.devices = 4}), "specify --model M"));
  EXPECT_TRUE(contains(why(shape + "--num-experts 8", {.devices = 4}), "--num-experts"));
}

TEST(ImportMegatron, UserModelTakesPrecedence) {
  const ImportedPlan imported =
      import_plan("--normalization RMSNorm --num-layers 16 --tensor-model-parallel-size 2", "a.txt",
                  {.model = *find_preset("llama3-8b"), .devices = 4, .batch = 8});
  EXPECT_EQ(imported.model.layers, 16);
  EXPECT_EQ(imported.model.vocab, 128256);
  EXPECT_EQ(imported.plan.batch, 8);
}

// A flag that is listed as understood has been applied, or a note states that it has not.
TEST(ImportMegatron, AppliesOrNotesFlagsOfNamedModel) {
  const std::string flags =
      "--vocab-size 1000 --norm-epsilon 1e-6 --untie-embeddings-and-output-weights --rotary-base 500000 "
      "--optimizer sgd --cp-comm-type a2a --apply-residual-connection-post-layernorm --overlap-grad-reduce";
  const auto has_note = [](const ImportedPlan& imported, const std::string& part) {
    return std::any_of(imported.notes.begin(), imported.notes.end(),
                       [&](const std::string& note) { return contains(note, part); });
  };
  const ImportedPlan turned =
      import_plan(flags, "a.txt", {.model = *find_preset("llama3.2-1b"), .devices = 4});
  EXPECT_EQ(turned.model.vocab, 1000);
  EXPECT_EQ(turned.model.norm_eps, 1e-6);
  EXPECT_FALSE(turned.model.is_tied);
  EXPECT_EQ(turned.model.rope_theta, 500000);
  EXPECT_EQ(turned.model.rope_scaling, find_preset("llama3.2-1b")->rope_scaling);
  EXPECT_TRUE(has_note(turned, "the optimizer state of Adam"));
  EXPECT_TRUE(has_note(turned, "'a2a'"));
  EXPECT_EQ(turned.unknown, std::vector<std::string>{"--apply-residual-connection-post-layernorm"});
  EXPECT_EQ(turned.ignored, std::vector<std::string>{"--overlap-grad-reduce"});
  const ImportedPlan learned = import_plan(flags + " --swiglu --disable-bias-linear", "a.txt",
                                           {.model = *find_preset("gpt2"), .devices = 4});
  EXPECT_EQ(learned.model.vocab, 1000);
  EXPECT_TRUE(has_note(learned, "--rotary-base is not applied"));
  EXPECT_TRUE(has_note(learned, "activation and biases come from gpt2"));
  EXPECT_TRUE(learned.model.has_mlp_bias);
  EXPECT_TRUE(has_note(learned, "--disable-bias-linear is not applied"));
  const ImportedPlan mixture =
      import_plan("--num-experts 16 --expert-model-parallel-size 4 --moe-grouped-gemm", "a.txt",
                  {.model = *find_preset("mixtral-8x7b"), .devices = 8});
  EXPECT_EQ(mixture.plan.pipelines[0].stages[0].chunks[0].runs[0].strategy.ep, 4);
  EXPECT_TRUE(has_note(mixture, "--num-experts 16 is not applied"));
}

TEST(ImportMegatron, SupportsTpPpDpMapping) {
  const ImportedPlan imported = import_plan(
      "--num-layers 4 --pipeline-model-parallel-size 2 --tensor-model-parallel-size 2 --use-tp-pp-dp-mapping",
      "a.txt", {.model = *find_preset("gpt2"), .devices = 8});
  EXPECT_EQ(imported.plan.pipelines[0].stages[0].devices, (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(imported.plan.pipelines[0].stages[1].devices, (std::vector<int>{2, 3, 6, 7}));
}

TEST(ImportDeepSpeed, ReadsTypicalFiles) {
  const std::string file = R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}, "fp16": {"enabled": true,
    "loss_scale": 0}, "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8,
    "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW"}, "curriculum_learning": {"enabled": false}})";
  const ImportedPlan imported = import_plan(
      file, "ds.json", {.model = *find_preset("llama2-7b"), .devices = 16, .sequence_length = 2048});
  EXPECT_EQ(imported.plan.batch, 128);
  const LayerStrategy& s = imported.plan.pipelines[0].stages[0].chunks[0].runs[0].strategy;
  EXPECT_EQ(s.zero, 3);
  EXPECT_TRUE(s.offload);
  EXPECT_EQ(imported.plan.precision, Precision::fp16);
  EXPECT_EQ(imported.unknown, std::vector<std::string>{"curriculum_learning.enabled"});
  EXPECT_TRUE(contains(message_of([&] { import_plan(file, "ds.json", {.devices = 4}); }), "--model M"));
  EXPECT_TRUE(contains(message_of([&] {
                         import_plan(R"({"zero_optimization": {"stage": 7}})", "ds.json",
                                     {.model = *find_preset("gpt2"), .devices = 4});
                       }),
                       "ds.json: zero_optimization.stage"));
}

TEST(ImportLayout, ParsesLayersOfParts) {
  const auto layers = [](const std::string& text) { return parse_layout(text, "x"); };
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(layers("Et*8|t*8|t*7|t*7L"), (Layers{8, 8, 7, 7}));
  EXPECT_EQ(layers("Ettt|(tt|)*3,L"), (Layers{3, 2, 2, 2, 0}));
  EXPECT_EQ(layers("E|(t*2,|)*2tL"), (Layers{0, 2, 2, 1}));
  for (const char* bad : {"Et*0L", "E(t", "Et*99999999L", "(tttttttttt)*9999", "xyz", "(t*9999)*9999"})
    EXPECT_NE(message_of([&] { layers(bad); }), "") << bad;
}

TEST(ImportWords, QuotesVariablesAndContinuations) {
  const auto words = [](const std::string& text) { return launch_line(text, "x").arguments; };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words("--a 'b c' \"d $E\" f\\ g"), (Words{"--a", "b c", "d $E", "f g"}));
  EXPECT_EQ(words("E=1 2\nE='x y'\n--a $E \"$E\" ${E}z"), (Words{"--a", "x", "y", "x y", "x", "yz"}));
  EXPECT_EQ(words("A=(1 \"2 3\" # no\n 4)\nA+=(5)\npython x.py --a ${A[@]}"),
            (Words{"--a", "1", "2 3", "4", "5"}));
}

TEST(ImportWords, RefusesMaliciousText) {
  std::string doubling = "A=xxxxxxxxxxxxxxxx\n";
  for (int i = 0; i < 64; ++i) doubling += "A=\"$A$A\"\n";
  EXPECT_TRUE(contains(message_of([&] { launch_line(doubling, "x"); }), "expands to more than"));
  std::string nested;
  for (int i = 0; i < 5000; ++i) nested += "${A:-";
  EXPECT_NE(message_of([&] { launch_line("--x " + nested, "x"); }), "");
  std::string deep = "--x $((";
  deep += std::string(100'000, '(');
  EXPECT_EQ(message_of([&] { launch_line(deep, "x"); }), "");
}

}  // namespace
}  // namespace optimus
