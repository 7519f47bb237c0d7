// Exported files for known plans, notes about unsupported properties, and atomic replacement of export
// folders.
#include "plan/export.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/failing_file_system.h"
#include "base/json.h"
#include "base/temporary_folder.h"
#include "plan/plan_json.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

const ExportedFile& file_of(const ExportedPlan& exported, const std::string& name) {
  for (const ExportedFile& file : exported.files)
    if (file.name == name) return file;
  throw UserError("no file {}", name);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool is_noted(const ExportedPlan& exported, const std::string& part) {
  for (const std::string& note : exported.notes)
    if (has(note, part)) return true;
  return false;
}

ModelSpec llama() { return *find_preset("llama3-8b"); }

UniformPlan grid_64() {
  UniformPlan shape{.pp = 4, .dp = 4, .microbatch = 2, .batch = 256, .sequence_length = 8192};
  shape.strategy = {.tp = 4, .sequence_parallel = true, .zero = 1};
  return shape;
}

TEST(ExportMegatron, WritesParallelismFlags) {
  const ExportedPlan exported = export_plan(uniform_plan(llama(), grid_64()), llama(), Trainer::megatron);
  const ExportedFile& script = file_of(exported, "launch.sh");
  EXPECT_TRUE(script.is_executable);
  for (const char* line :
       {"  --num-layers 32\n", "  --num-query-groups 8\n", "  --tensor-model-parallel-size 4\n",
        "  --sequence-parallel\n", "  --pipeline-model-parallel-size 4\n", "  --use-distributed-optimizer\n",
        "  --micro-batch-size 2\n", "  --global-batch-size 256\n", "  --bf16\n", "  --rotary-base 500000\n",
        "GPUS_PER_NODE=8\n", "NUM_NODES=8\n", "CUDA_DEVICE_MAX_CONNECTIONS=1\n",
        "--untie-embeddings-and-output-weights\n", "pretrain_gpt.py "})
    EXPECT_TRUE(has(script.text, line)) << line;
  EXPECT_FALSE(has(script.text, "layout"));
  EXPECT_TRUE(exported.notes.empty()) << exported.notes.front();
  EXPECT_EQ(parse_plan(file_of(exported, "plan.json").text, "plan"), uniform_plan(llama(), grid_64()));
}

TEST(ExportMegatron, WritesLayoutForUnevenStages) {
  ModelSpec model = llama();
  model.layers = 30;
  UniformPlan shape = grid_64();
  const ExportedPlan exported = export_plan(uniform_plan(model, shape), model, Trainer::megatron);
  EXPECT_TRUE(
      has(file_of(exported, "launch.sh").text, "--pipeline-model-parallel-layout 'Et*8|t*8|t*7|t*7L'"));
  shape.chunks = 2, shape.schedule = Schedule::interleaved;
  EXPECT_TRUE(
      has(file_of(export_plan(uniform_plan(model, shape), model, Trainer::megatron), "launch.sh").text,
          "'Et*4|t*4|t*4|t*4|t*4|t*4|t*3|t*3L'"));
}

TEST(ExportMegatron, WritesBlockMethodForPartialRecompute) {
  Plan plan = uniform_plan(llama(), grid_64());
  int again = 5;
  for (Stage& stage : plan.pipelines.front().stages) {
    std::vector<BlockRun>& runs = stage.chunks.front().runs;
    BlockRun rest = runs.front();
    runs.front().count = --again + (rest.first_block == 0 ? 1 : 0);
    runs.front().strategy.recompute = RecomputeMode::full;
    rest.first_block += runs.front().count, rest.count -= runs.front().count;
    runs.push_back(rest);
  }
  const ExportedPlan exported = export_plan(plan, llama(), Trainer::megatron);
  EXPECT_TRUE(
      has(file_of(exported, "launch.sh").text, "--recompute-method block\n  --recompute-num-layers 4\n"));
  EXPECT_TRUE(is_noted(exported, "4 layers of each stage, as many as in the stage that recomputes most"));
}

TEST(ExportMegatron, RecomputesLayersSeparatelyForMixedGroupSizes) {
  Plan plan = uniform_plan(llama(), grid_64());
  int group = 0;
  for (Stage& stage : plan.pipelines.front().stages) {
    stage.chunks.front().runs.front().strategy.recompute = RecomputeMode::full;
    stage.chunks.front().runs.front().strategy.recompute_layers = ++group;
  }
  const ExportedPlan exported = export_plan(plan, llama(), Trainer::megatron);
  EXPECT_TRUE(
      has(file_of(exported, "launch.sh").text, "--recompute-method uniform\n  --recompute-num-layers 1\n"));
  EXPECT_TRUE(is_noted(exported, "recomputes each layer separately"));
}

TEST(ExportMegatron, NotesDifferences) {
  Plan plan = uniform_plan(llama(), grid_64());
  plan.schedule = Schedule::zero_bubble;
  plan.copy_distance = 1;
  std::swap(plan.pipelines[0].stages[0].devices[0], plan.pipelines[0].stages[0].devices[1]);
  const ExportedPlan exported = export_plan(plan, llama(), Trainer::megatron);
  EXPECT_TRUE(is_noted(exported, "1F1B instead of zero-bubble"));
  EXPECT_TRUE(is_noted(exported, "copy_distance 1"));
  EXPECT_TRUE(is_noted(exported, "must run on the plan's devices 1,0,2..63"));
}

TEST(ExportMegatron, RefusesUnsupportedPlans) {
  const auto why = [](Plan plan, const ModelSpec& model) {
    return message_of([&] { export_plan(plan, model, Trainer::megatron); });
  };
  Plan plan = uniform_plan(llama(), grid_64());
  plan.precision = plan.accumulators = Precision::fp64;
  EXPECT_TRUE(has(why(plan, llama()), "fp64"));
  plan = uniform_plan(llama(), grid_64());
  plan.pipelines[0].stages[1].chunks[0].runs[0].strategy.tp = 2;
  EXPECT_TRUE(has(why(plan, llama()), "block 9 of the plan is split differently from block 0"));
  const ModelSpec bert = *find_preset("bert-base");
  plan = uniform_plan(bert, {.batch = 1, .sequence_length = 512});
  EXPECT_TRUE(has(why(plan, bert), "bert-base has post-norm blocks"));
  UniformPlan shape = grid_64();
  shape.batch = 254;
  EXPECT_TRUE(has(why(uniform_plan(llama(), shape), llama()), "multiple of 4"));
}

TEST(ExportDeepSpeed, WritesTheConfiguration) {
  UniformPlan shape = grid_64();
  shape.pp = 1, shape.dp = 16, shape.strategy = {.tp = 4, .zero = 2, .offload = true};
  const ExportedPlan exported = export_plan(uniform_plan(llama(), shape), llama(), Trainer::deepspeed);
  const Json json = Json::parse(file_of(exported, "ds_config.json").text);
  EXPECT_EQ(json["train_batch_size"], 256);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["gradient_accumulation_steps"], 8);
  EXPECT_EQ(json["zero_optimization"]["stage"], 2);
  EXPECT_EQ(json["zero_optimization"]["offload_optimizer"]["device"], "cpu");
  EXPECT_EQ(json["tensor_parallel"]["autotp_size"], 4);
  EXPECT_TRUE(json["bf16"]["enabled"]);
  EXPECT_EQ(Json::parse(file_of(exported, "config.json").text)["num_hidden_layers"], 32);
}

TEST(ExportDeepSpeed, LowersZeroStageWithPipelinesAndNotesIt) {
  UniformPlan shape = grid_64();
  shape.strategy.zero = 3;
  const ExportedPlan exported = export_plan(uniform_plan(llama(), shape), llama(), Trainer::deepspeed);
  EXPECT_TRUE(is_noted(exported, "supports at most zero 1"));
  EXPECT_TRUE(is_noted(exported, "PipelineModule of 4 stages"));
  EXPECT_EQ(Json::parse(file_of(exported, "ds_config.json").text)["zero_optimization"]["stage"], 1);
}

TEST(ExportTorchtitan, WritesBothFormats) {
  const ExportedPlan exported = export_plan(uniform_plan(llama(), grid_64()), llama(), Trainer::torchtitan);
  const std::string& toml = file_of(exported, "torchtitan.toml").text;
  for (const char* line :
       {"[model]\nname = \"llama3\"\nflavor = \"8B\"\n", "\nlocal_batch_size = 64\n",
        "\nglobal_batch_size = 256\n", "\ndata_parallel_shard_degree = 4\n", "\ntensor_parallel_degree = 4\n",
        "\npipeline_parallel_degree = 4\n", "\npipeline_parallel_microbatch_size = 2\n",
        "\npipeline_parallel_schedule = \"1F1B\"\n", "[[\"tok_embeddings\",\"layers.0\",",
        "\"layers.31\",\"norm\",\"output\"]]"})
    EXPECT_TRUE(has(toml, line)) << line;
  const std::string& python = file_of(exported, "optimus_torchtitan.py").text;
  for (const char* line :
       {"    config.model_spec = model_registry(\"8B\")\n",
        "    config.parallelism.tensor_parallel_degree = 4\n",
        "    config.parallelism.enable_sequence_parallel = True\n", "\"norm\",\"lm_head\"]]\n"})
    EXPECT_TRUE(has(python, line)) << line;
}

TEST(ExportTorchtitan, UsesVShapedZeroBubble) {
  Plan plan = uniform_plan(llama(), grid_64());
  plan.schedule = Schedule::zero_bubble;
  const ExportedPlan exported = export_plan(plan, llama(), Trainer::torchtitan);
  EXPECT_TRUE(has(file_of(exported, "torchtitan.toml").text, "\"ZBVZeroBubble\""));
  EXPECT_TRUE(is_noted(exported, "V-shaped"));
}

TEST(ExportTorchtitan, ListsSupportedModels) {
  ModelSpec model = llama();
  model.layers = 31;
  UniformPlan shape = grid_64();
  EXPECT_TRUE(has(message_of([&] { export_plan(uniform_plan(model, shape), model, Trainer::torchtitan); }),
                  "available: llama3 1B"));
}

// No plan is dropped silently: it is exported with its batch, or refused with one line.
TEST(Export, ExportsOrRefusesAnyPlan) {
  EXPECT_TRUE(rc::check([] {
    const ModelSpec model = random_small_model();
    const Plan plan = random_plan::plan_for(model);
    RC_PRE(!find_problem(plan, model));
    for (const Trainer trainer :
         {Trainer::megatron, Trainer::deepspeed, Trainer::torchtitan, Trainer::optimus})
      try {
        const ExportedPlan exported = export_plan(plan, model, trainer);
        RC_ASSERT(parse_plan(file_of(exported, "plan.json").text, "plan") == plan);
        for (const std::string& note : exported.notes) RC_ASSERT(!has(note, "\n"));
        if (trainer == Trainer::megatron)
          RC_ASSERT(
              has(file_of(exported, "launch.sh").text, fmt::format("--global-batch-size {}\n", plan.batch)));
      } catch (const UserError& error) {
        RC_ASSERT(trainer != Trainer::optimus);
        RC_ASSERT(!has(error.what(), "\n"));
      }
  }));
}

TEST(Export, ParsesTrainerNames) {
  for (const Trainer trainer : {Trainer::megatron, Trainer::deepspeed, Trainer::torchtitan, Trainer::optimus})
    EXPECT_EQ(parse_trainer(text(trainer), "--export"), trainer);
  EXPECT_TRUE(has(message_of([] { parse_trainer("megatrn", "--export"); }), "did you mean 'megatron'"));
}

ExportedPlan small_export(const std::string& text) {
  return {Trainer::optimus, {{"a.sh", text, true}, {"b", text, false}}, {}};
}

TEST(WriteExport, ReplacesOnlyEarlierExports) {
  const TemporaryFolder folder;
  RealFileSystem files;
  const Path out = folder / "out/";
  write_export(files, small_export("one"), out);
  EXPECT_EQ(value_or_throw(read_file(out / "a.sh")), "one");
  EXPECT_NE(std::filesystem::status(out / "a.sh").permissions() & std::filesystem::perms::owner_exec,
            std::filesystem::perms::none);
  write_export(files, small_export("two"), out);
  EXPECT_EQ(value_or_throw(read_file(out / "a.sh")), "two");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out"});
  folder.write("out/mine.txt", "x");
  EXPECT_TRUE(has(message_of([&] { write_export(files, small_export("three"), out); }), "'mine.txt'"));
  EXPECT_EQ(value_or_throw(read_file(out / "a.sh")), "two");
  folder.write("file", "x");
  EXPECT_TRUE(
      has(message_of([&] { write_export(files, small_export("three"), folder / "file"); }), "is a file"));
}

TEST(WriteExport, IsAtomicUnderFailures) {
  for (const bool has_earlier : {false, true})
    for (int calls = 0;; ++calls) {
      const TemporaryFolder folder;
      RealFileSystem real;
      const Path out = folder / "out";
      if (has_earlier) write_export(real, small_export("old"), out);
      FailingFileSystem failing(calls);
      const std::string why = message_of([&] { write_export(failing, small_export("new"), out); });
      const std::vector<std::string> expected =
          has_earlier || why.empty() ? std::vector<std::string>{"out"} : std::vector<std::string>{};
      // If the disk fails permanently, the old folder cannot be restored either; it is then complete in the
      // backup folder.
      const bool is_aside = has_earlier && !why.empty() && !std::filesystem::exists(out);
      if (is_aside) {
        ASSERT_EQ(folder.names().size(), 1U);
        EXPECT_TRUE(has(folder.names().front(), "out.old-"));
      } else {
        EXPECT_EQ(folder.names(), expected) << calls;
        if (has_earlier || why.empty()) {
          EXPECT_EQ(value_or_throw(read_file(out / "b")), why.empty() ? "new" : "old");
        }
      }
      if (why.empty()) break;
      ASSERT_LT(calls, 100);
    }
}

}  // namespace
}  // namespace optimus
