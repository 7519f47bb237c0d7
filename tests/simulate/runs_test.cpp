#include "simulate/runs.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "simulate/accuracy.h"
#include "simulate/run_vocabulary.h"

namespace optimus {
namespace {

constexpr const char* kHeader =
    "id,gpu,gpus_per_node,n_gpus,model_name,layers,hidden,heads,kv_heads,ffn,vocab,seq_len,global_batch_seqs,"
    "micro_batch,tp,pp,"
    "vpp,cp,zero_stage_or_fsdp,seq_parallel,recompute,precision,iter_time_s,tokens_per_s_per_gpu,mem_gb_per_"
    "gpu,memory_kind,"
    "software,network,experts,notes\n";

optimus::Run read_one(const std::string& row) {
  return read_run(parse_csv(kHeader + row + "\n", "t.csv"), 0);
}

TEST(Runs, ReadsCompleteRow) {
  const optimus::Run run = read_one(
      "a-1,H100-80GB,8,64,llama3-8b,32,4096,32,8,14336,128256,8192,128,1,2,2,2,1,zero1,yes,full,fp8,3.5,,60,"
      "allocated,"
      "megatron-core-2024,ib-ndr-8x400,,");
  ASSERT_TRUE(run.run) << run.measured.skip_reason;
  EXPECT_TRUE(run.measured.filled_fields.empty()) << run.measured.filled_fields.front();
  const Plan& plan = run.run->plan;
  EXPECT_EQ(plan.pipelines[0].stages.size(), 2u);
  EXPECT_EQ(plan.pipelines[0].stages[0].chunks.size(), 2u);
  EXPECT_EQ(plan.pipelines[0].microbatches.size(), 8u);
  EXPECT_EQ(plan.schedule, Schedule::interleaved);
  EXPECT_EQ(run.run->format.format, NumberFormat::fp8);
  EXPECT_EQ(run.measured.seconds, 3.5);
  EXPECT_EQ(run.measured.source, "a");
  EXPECT_GT(run.run->simulator->seconds(fitted_constants()), 0);
}

TEST(Runs, ListsFilledFields) {
  const optimus::Run run =
      read_one("b-1,A100,,16,llama2-7b,,,,,,,,,,,,,,,,,,,2000,,,megatron-core-2025,ib-hdr-8x200,,");
  ASSERT_TRUE(run.run) << run.measured.skip_reason;
  EXPECT_EQ(run.run->model.layers, 32);
  EXPECT_EQ(run.run->plan.sequence_length, 4096);
  const auto is_default = [&](std::string_view column) {
    for (const std::string& filled : run.measured.filled_fields)
      if (filled.starts_with(column)) return true;
    return false;
  };
  for (const char* column : {"layers", "hidden", "heads", "seq_len", "global_batch_seqs", "micro_batch", "tp",
                             "pp", "recompute", "precision", "zero_stage_or_fsdp"})
    EXPECT_TRUE(is_default(column)) << column;
}

TEST(Runs, PredictsMoeRunsSeparately) {
  const std::string header =
      "id,gpu,gpus_per_node,n_gpus,model_name,layers,hidden,heads,kv_heads,vocab,seq_len,global_batch_seqs,"
      "micro_batch,"
      "tp,pp,cp,ep,precision,iter_time_s,software,network,experts,experts_per_token,moe_ffn,notes\n";
  const std::string rest = ",H100,8,16,qwen3-x,48,2048,32,4,151936,4096,64,1,";
  const std::string table = header + "a-1" + rest +
                            "1,1,1,8,bf16,2,megatron-core-2025,ib-ndr-8x400,128,8,768,balanced\n" + "a-2" +
                            rest + "2,1,1,8,bf16,2,megatron-core-2025,ib-ndr-8x400,128,8,768,\n" + "a-3" +
                            rest + "1,1,1,3,bf16,2,megatron-core-2025,ib-ndr-8x400,128,8,768,\n" + "a-4" +
                            rest + "1,1,1,1,bf16,2,megatron-core-2025,ib-ndr-8x400,,,,\n";
  const std::vector<optimus::Run> runs = read_runs(parse_csv(table, "t.csv"));
  ASSERT_TRUE(runs[0].run && runs[1].run);
  EXPECT_TRUE(runs[0].run->software.balances_experts);
  EXPECT_FALSE(runs[1].run->software.balances_experts);
  EXPECT_EQ(runs[0].measured.skip_reason, "an MoE model, reported separately");
  EXPECT_EQ(runs[2].measured.skip_reason, "ep 3 does not divide the 16 devices of a stage");
  const std::vector<RunOutcome> outcomes = predict_runs(runs, fitted_constants());
  const AccuracySummary summary = summarise(runs, outcomes);
  EXPECT_EQ(summary.mixtures, 3);
  EXPECT_EQ(summary.mixture_time.rows, 2);
  EXPECT_EQ(summary.step_time.rows, 1);
  EXPECT_EQ(summary.skipped, 3);
  const OrderedJson json = accuracy_json(runs, outcomes);
  EXPECT_EQ(json["summary"]["mixtures_of_experts"]["rows"], 3);
  EXPECT_TRUE(json["rows"][0]["predicted_seconds"].is_number());
  EXPECT_TRUE(json["rows"][0]["skipped"].is_string());
}

TEST(Runs, SkipsRowsWithReason) {
  const auto reason = [](const std::string& row) { return read_one(row).measured.skip_reason; };
  const std::string shape = "x,32,4096,32,8,14336,128256,8192,128,1,";
  EXPECT_EQ(reason("c-1,A100,8,8," + shape + "1,1,1,1,,,,bf16,1,,,,fsdp2-compile,single-node,8,"),
            "experts_per_token is missing");
  EXPECT_NE(
      reason("c-1,A100,8,8," + shape + "1,1,1,1,,,,bf16,,,,,fsdp2-compile,single-node,,").find("neither"),
      std::string::npos);
  EXPECT_NE(
      reason("c-1,A100,8,8," + shape + "1,1,1,1,,,,bf16,1,,,,fsdp2-compile,single-node,,LoRA").find("LoRA"),
      std::string::npos);
  EXPECT_EQ(reason("c-1,Z9,8,8," + shape + "1,1,1,1,,,,bf16,1,,,,fsdp2-compile,single-node,,"),
            "unknown gpu 'Z9'");
  EXPECT_EQ(reason("c-1,A100,8,8," + shape + "3,1,1,1,,,,bf16,1,,,,fsdp2-compile,single-node,,"),
            "tp 3 x pp 1 x cp 1 does not divide 8 devices");
  EXPECT_EQ(reason("c-1,A100,8,8," + shape + "many,1,1,1,,,,bf16,1,,,,fsdp2-compile,single-node,,"),
            "tp: expected a number, got 'many'");
  EXPECT_EQ(reason("c-1,A100,8,8," + shape + "1,1,1,1,,,,bf16,nan,,,,fsdp2-compile,single-node,,"),
            "iter_time_s: expected a number, got 'nan'");
}

TEST(Known, UnderstandsTableWords) {
  EXPECT_EQ(cluster_by_gpu_name("H100-96GB HBM2e 500W", "roce-8x400", 8, 16).profile().types[0].name,
            "h100-96");
  EXPECT_EQ(cluster_by_gpu_name("GB200", "nvl72-ndr", 4, 256).profile().groups[0].devices_per_domain, 72);
  EXPECT_DOUBLE_EQ(
      cluster_by_gpu_name("A100", "other-4x200", 8, 16).profile().groups[0].network.nic.bytes_per_second,
      12.5e9);
  EXPECT_EQ(model_by_name("gpt 205b"), std::nullopt);
  EXPECT_EQ(model_by_name("llama3-70b cut to 12 layers")->hidden, 8192);
  const Software& megatron = *find_software("megatron-core-2025");
  EXPECT_EQ(sharding_of("zero1 within 8-GPU group", megatron).group, 8);
  EXPECT_EQ(sharding_of("fsdp full_shard (zero3)", megatron).zero, 3);
  EXPECT_EQ(sharding_of("ddp", megatron).zero, 1);
  EXPECT_EQ(number_formats_of("NVFP4", megatron).format.format, NumberFormat::fp4);
  EXPECT_TRUE(number_formats_of("MXFP8", megatron).format.has_blocks);
}

// The committed constants on the committed runs. The bounds are the errors of the fit plus a small margin, so
// that a degradation of the model is detected.
TEST(Accuracy, CommittedFitIsAccurate) {
  const Path path = Path(OPTIMUS_SOURCE) / "bench/data/published_runs.csv";
  const std::vector<optimus::Run> runs = read_runs(parse_csv(value_or_throw(read_file(path)), path.string()));
  const std::vector<RunOutcome> outcomes = predict_runs(runs, fitted_constants());
  const AccuracySummary summary = summarise(runs, outcomes);
  EXPECT_GE(summary.step_time.rows, 450);
  EXPECT_LT(summary.step_time.mape, 0.08);
  EXPECT_LT(summary.left_out_source.mape, 0.15);
  EXPECT_LT(summary.memory.mape, 0.08);
  EXPECT_GT(summary.pairs_ordered, 0.90);
  EXPECT_GT(summary.rank_correlation, 0.85);
  // Every source was excluded once.
  const std::vector<std::string_view> left_out = left_out_sources();
  for (const RunOutcome& outcome : outcomes)
    EXPECT_NE(std::find(left_out.begin(), left_out.end(), outcome.run->measured.source), left_out.end())
        << outcome.run->measured.source;
  const OrderedJson json = accuracy_json(runs, outcomes);
  EXPECT_EQ(json["rows"].size(), runs.size());
  for (const char* key :
       {"step_time", "memory", "left_out_source", "rank_correlation", "pairs_ordered", "skipped"})
    EXPECT_TRUE(json["summary"].contains(key)) << key;
  EXPECT_NE(accuracy_text(runs, outcomes).find("pairs in"), std::string::npos);
}

// A second table by other authors, which is not part of this repository.
TEST(Accuracy, SingleNodeSweepIsAccurate) {
  const char* shared = std::getenv("OPTIMUS_SHARED");
  const Path folder = shared != nullptr ? Path(shared) : Path(OPTIMUS_SOURCE) / "../shared";
  const Path path = folder / "runs/vtrain_single_node.csv";
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << "no " << path << "; set OPTIMUS_SHARED to the folder that has runs/";
  const std::vector<optimus::Run> runs = read_runs(parse_csv(value_or_throw(read_file(path)), path.string()));
  const AccuracySummary summary = summarise(runs, predict_runs(runs, fitted_constants()));
  RecordProperty("mape", std::to_string(summary.step_time.mape));
  EXPECT_GT(summary.step_time.rows, 1000);
  EXPECT_LT(summary.step_time.mape, 0.12);
}

}  // namespace
}  // namespace optimus
