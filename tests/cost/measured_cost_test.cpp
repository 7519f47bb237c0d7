// Predictions from measured kernels: for a device whose kernels all run at a known rate, they match a manual
// count.
#include "cost/measured_cost.h"

#include <gtest/gtest.h>

#include "cluster/standard.h"
#include "cost/instruction_cost.h"
#include "model/presets.h"
#include "schedule/program.h"

namespace optimus {
namespace {

constexpr double kRate = 1e12;  // operations per second
const char* const kProducts[] = {"product", "product.add", "product.input", "product.weight"};

// GEMMs and attention at one rate; everything else is free.
KernelTimes times_of(NumberFormat format) {
  KernelTimes times;
  times.format = format;
  for (const char* name : kProducts) times.tables[name] = {{{1}, {1}, {1}}, {kRate}};
  for (const char* name : {"attention", "attention.backward"}) times.tables[name] = {{{1}, {1}}, {kRate}};
  for (const char* name :
       {"norm.layer_norm", "norm.layer_norm.backward", "activation.gelu_tanh",
        "activation.gelu_tanh.backward", "embedding", "embedding.backward", "loss", "add", "bias", "update"})
    times.tables[name] = {{{1}}, {1e300}};
  return times;
}

double step_seconds(const ModelSpec& model, RecomputeMode mode, const Software& software,
                    NumberFormat measured = NumberFormat::bf16) {
  HardwareProfile hardware = standard_cluster("a100x1");
  hardware.types[0].kernels = {times_of(measured)};
  const Cluster cluster(hardware);
  const DeviceMap map = DeviceMap::identity(1);
  UniformPlan shape{.microbatch = 2, .batch = 4, .sequence_length = 512};
  shape.strategy.recompute = mode;
  const Plan plan = uniform_plan(model, shape);
  const ModelWork work = work_of(model, 512);
  const optimus::Setup setup{plan, model, cluster, map, software, {}};
  double sum = 0;
  for (const double seconds :
       PricedProgram(setup, work, compile(plan, model, 0), Device{0}).price(fitted_constants()))
    sum += seconds;
  return sum;
}

TEST(MeasuredCost, AddsUpToModelWork) {
  const ModelSpec model = *find_preset("gpt2-medium");
  const double tokens = 4 * 512;
  double flops = 0, spared = 0;
  for (int block = 0; block < num_blocks(model); ++block)
    for (const Operation& op : operations(model, block, 512))
      flops += (op.forward_flops + op.backward_flops + op.attention_recompute_flops) * tokens;
  EXPECT_NEAR(step_seconds(model, RecomputeMode::none, optimus_software()), flops / kRate,
              1e-9 * flops / kRate);
  // Layers are recomputed except for their last GEMM.
  for (const Operation& op : operations(model, 1, 512))
    if (op.name != "mlp.down") spared += op.forward_flops * tokens * static_cast<double>(model.layers);
  EXPECT_NEAR(step_seconds(model, RecomputeMode::full, optimus_software()), (flops + spared) / kRate,
              1e-9 * flops / kRate);
}

// An fp8 probe measures bf16 too, because some GEMMs stay in 16 bits. An fp32 probe does not.
TEST(MeasuredCost, Fp8MeasurementsServeBf16) {
  const ModelSpec model = *find_preset("gpt2-medium");
  const auto seconds = [&](NumberFormat measured) {
    return step_seconds(model, RecomputeMode::none, optimus_software(), measured);
  };
  EXPECT_EQ(seconds(NumberFormat::fp8), seconds(NumberFormat::bf16));
  EXPECT_NE(seconds(NumberFormat::fp32), seconds(NumberFormat::bf16));
}

TEST(MeasuredCost, AppliesOnlyToOptimusKernels) {
  const ModelSpec model = *find_preset("gpt2-medium");
  EXPECT_NE(step_seconds(model, RecomputeMode::none, *find_software("megatron-core-2024")),
            step_seconds(model, RecomputeMode::none, optimus_software()));
}

}  // namespace
}  // namespace optimus
