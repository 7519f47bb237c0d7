// Implements sailor.h. Properties that the files omit are known from the description of the experiments:
// Megatron-DeepSpeed with fp32 storage, in a container image that allows TF32 (NVIDIA's 24.10), sequences of
// 2,048 tokens, no recomputation, nodes of four GH200 on Slingshot, other GPUs on 1 Gb/s Ethernet.
#include "simulate/sailor.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "cluster/standard.h"
#include "model/family.h"
#include "model/presets.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr std::int64_t kSequenceLength = 2048;

struct ShapeRow {
  int blocks;  // number of blocks: layers, embedding and head
  const char* name;
  std::int64_t layers, hidden, heads, ffn, vocab;
};
constexpr ShapeRow kShapes[] = {{26, "opt-350m", 24, 1024, 16, 4096, 50272},
                                {34, "gpt-neo-2.7b", 32, 2560, 20, 10240, 50257}};

ModelSpec model_with(int blocks, const JsonView& view) {
  for (const ShapeRow& row : kShapes) {
    if (row.blocks != blocks) continue;
    ModelSpec model = *find_preset("gpt3-350m");
    model.name = row.name, model.layers = row.layers, model.hidden = row.hidden;
    model.heads = model.kv_heads = row.heads, model.head_dim = row.hidden / row.heads;
    model.ffn = row.ffn, model.vocab = row.vocab;
    return model;
  }
  view.refuse("layers of OPT-350M (26) or GPT-Neo 2.7B (34)");
}

struct SailorGpu {
  const char *name, *type;
};
constexpr SailorGpu kSailorGpus[] = {
    {"GH-96", "gh200"}, {"RTX-2080", "rtx2080ti"}, {"Titan-RTX", "titan-rtx"}, {"RTX-3090", "rtx3090"}};

const char* type_of_gpu(const JsonView& gpu) {
  for (const SailorGpu& row : kSailorGpus)
    if (gpu.text() == row.name) return row.type;
  gpu.refuse("GH-96, RTX-2080, Titan-RTX or RTX-3090");
}

// Reads the plan of a file and builds its cluster. Each replica of a stage is on a separate node.
class PlanFileReader {
 public:
  explicit PlanFileReader(RunCase& run) : run_(run) {}

  void read(const JsonView& file) {
    const std::vector<JsonView> pipelines = file.at("pipeline_list").elements();
    if (pipelines.size() != 1) file.at("pipeline_list").refuse("one pipeline");
    const JsonView& pipeline = pipelines.front();
    const std::vector<JsonView> layers = pipeline.at("layers_per_stage").elements(),
                                replicas = pipeline.at("tmp_per_stage").elements();
    if (layers.empty() || layers.size() != replicas.size() || layers.size() > 1000)
      pipeline.refuse("the same number of stages in layers_per_stage as in tmp_per_stage");
    int blocks = 0;
    for (const JsonView& stage : layers) blocks += static_cast<int>(stage.elements().size());
    run_.model = model_with(blocks, pipeline);
    Plan& plan = run_.plan;
    plan.model = run_.model.name, plan.num_blocks = blocks;
    plan.sequence_length = kSequenceLength, plan.precision = plan.accumulators = Precision::fp32;
    plan.pipelines.emplace_back();
    int first = 0;
    for (std::size_t s = 0; s < layers.size(); ++s) {
      const int count = static_cast<int>(layers[s].elements().size());
      add_stage(replicas[s], first, count);
      first += count;
    }
    add_microbatches(file);
  }

  Cluster cluster(const std::string& source) {
    profile_.name = "sailor";
    return Cluster(std::move(profile_), source);
  }

 private:
  void add_stage(const JsonView& replicas, int first, int count) {
    Stage stage;
    LayerStrategy strategy;
    const std::vector<JsonView> replica_list = replicas.elements();
    if (replica_list.empty() || replica_list.size() > 10'000) replicas.refuse("at least one replica");
    for (const JsonView& replica : replica_list) {
      const std::vector<JsonView> pair = replica.elements();
      if (pair.size() != 2) replica.refuse("GPUs and the number of tensor-parallel ranks");
      const int tp = static_cast<int>(pair[1].integer(1, 64));
      if (&replica != &replica_list.front() && tp != strategy.tp)
        replica.refuse("the same number of tensor-parallel ranks as in the other replicas of the stage");
      strategy.tp = tp;
      const std::vector<JsonView> nodes = pair[0].elements();
      if (nodes.size() != 1 || nodes[0].elements().size() < 2) replica.refuse("one node: GPU, number, zone");
      add_node(type_of_gpu(nodes[0].elements()[0]), tp);
      for (int i = 0; i < tp; ++i) stage.devices.push_back(num_devices_++);
    }
    stage.chunks.push_back({{{first, count, strategy}}});
    run_.plan.pipelines.front().stages.push_back(std::move(stage));
  }

  void add_node(const std::string& type, int devices) {
    auto at = std::find_if(profile_.types.begin(), profile_.types.end(),
                           [&](const DeviceType& known) { return known.name == type; });
    if (at == profile_.types.end()) at = profile_.types.insert(at, *find_device_type(type));
    NodeGroup group = standard_group(type, static_cast<int>(at - profile_.types.begin()), devices);
    if (type == "gh200") {
      group.network.nics_per_node = devices;  // one NIC per superchip
      // Six links of 25 GB/s to each of the three other devices. Rings over four of these links reach 250
      // GB/s, as the authors measured.
      group.domain_link.bytes_per_second = 262e9;
    }
    profile_.groups.push_back(group);
  }

  void add_microbatches(const JsonView& file) {
    Plan& plan = run_.plan;
    const std::int64_t size = file.at("mbs").integer(1, 100'000);
    plan.batch = file.at("gbs").integer(1, 10'000'000);
    const Stage& stage = plan.pipelines.front().stages.front();
    const std::int64_t sequences = size * data_parallel(stage, stage.chunks[0].runs[0].strategy);
    std::int64_t remaining = plan.batch;
    for (; remaining > 0; remaining -= std::min(remaining, sequences))
      plan.pipelines.front().microbatches.push_back(static_cast<int>(std::min(remaining, sequences)));
  }

  RunCase& run_;
  HardwareProfile profile_;
  int num_devices_ = 0;
};

}  // namespace

MeasuredPlanFile parse_measured_plan(std::string_view text, const std::string& source) {
  const Json document = parse_json(text, source);
  const JsonView file(document, source);
  MeasuredPlanFile result;
  result.name = source;
  result.seconds = file.at("real").number(), result.bytes = file.at("max_mem").number();
  if (!(result.seconds > 0)) file.at("real").refuse("a number above 0");
  result.run = std::make_unique<RunCase>();
  RunCase& run = *result.run;
  PlanFileReader reader(run);
  reader.read(file);
  run.cluster.emplace(reader.cluster(source));
  result.is_mixed = run.cluster->profile().types.size() > 1;
  run.map = DeviceMap::identity(num_devices(run.plan));
  run.software = *find_software("megatron-deepspeed-2022");
  run.software.has_fused_softmax = false;  // the fused softmax supports only 16-bit types
  run.software.gradient_bytes = 4;
  run.format = format_of(Precision::fp32);
  if (const auto problem = find_problem(run.plan, run.model)) throw UserError("{}: {}", source, *problem);
  run.simulator.emplace(run.setup());
  return result;
}

}  // namespace optimus
