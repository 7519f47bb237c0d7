// Benchmarks training steps of the engine on random tokens or on a token file; prints one line of JSON.
// bench/engine_bench.py compares it with PyTorch.
//
//   engine_bench model=gpt2 layers=12 batch=8 microbatch=4 seq=512 precision=fp32 device=cpu threads=2 warm=2
//   engine_bench probe=FILE device=cuda   measures this machine, as `optimus profile --hardware --out FILE`
//   engine_bench … steps=10               number of timed steps, after `warm` untimed ones
//   engine_bench … products=FILE          file that stores measured GEMM algorithms (CUDA)
//   engine_bench … recording=0            does not record steps
//   engine_bench … plan=FILE              runs this plan; batch, microbatch, seq and recompute are ignored
//   engine_bench … losses=1               also prints the loss and the gradient norm of every step
//   engine_bench … tokens=PREFIX seed=N lr=X
//                                         trains on a token file in Megatron's format; the learning rate
//                                         warms up for 30 steps and then stays constant
//   engine_bench … hardware=FILE          also prints the simulator's prediction for that hardware
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/random.h"
#include "cluster/hardware_json.h"
#include "cluster/open.h"
#include "data/samples.h"
#include "engine/engine.h"
#include "model/open.h"
#include "plan/plan_json.h"
#include "run/probe_machine.h"
#include "simulate/simulate.h"
#include "switching/memory.h"

namespace optimus {
namespace {

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const std::size_t at = word.find('=');
      if (at == std::string::npos) throw UserError("'{}' is not KEY=VALUE", word);
      arguments_[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  std::string text(const std::string& key, const std::string& default_value) const {
    const auto at = arguments_.find(key);
    return at == arguments_.end() ? default_value : at->second;
  }
  std::int64_t number(const std::string& key, std::int64_t default_value) const {
    return parse_count(text(key, std::to_string(default_value)), key);
  }
  std::optional<std::int64_t> given(const std::string& key) const {
    return arguments_.contains(key) ? std::optional(number(key, 0)) : std::nullopt;
  }

 private:
  std::map<std::string, std::string> arguments_;
};

Batch random_batch(const Plan& plan, const ModelSpec& model, std::int64_t step) {
  std::vector<Sample> samples(static_cast<std::size_t>(plan.batch));
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const RandomKey key = RandomKey(7).derive(static_cast<std::uint64_t>(step)).derive(s);
    for (std::int64_t i = 0; i <= plan.sequence_length; ++i) {
      const auto id = static_cast<TokenId>(
          random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(model.vocab)));
      if (i < plan.sequence_length) {
        samples[s].inputs.push_back(id);
        samples[s].positions.push_back(static_cast<std::int32_t>(i));
      }
      if (i > 0) samples[s].targets.push_back(id);
    }
    samples[s].num_targets = plan.sequence_length;
  }
  return make_batch(samples, plan, step, step * plan.batch);
}

// The batches of the steps: from a token file, or random.
class Batches {
 public:
  Batches(const Arguments& arguments, const Plan& plan, const ModelSpec& model) : plan_(plan) {
    const std::string tokens = arguments.text("tokens", "");
    if (tokens.empty()) {
      for (int i = 0; i < 4; ++i) random_.push_back(random_batch(plan, model, i));
      return;
    }
    const std::shared_ptr<const TokenSet> set = open_megatron(tokens);
    const SampleOptions how{.sequence_length = plan.sequence_length, .seed = arguments.number("seed", 1)};
    text_.emplace(std::vector<BlendPart>{{{set, 0, set->num_tokens()}, 1}}, how, model.vocab);
  }
  Batch operator[](std::int64_t step) const {
    if (!text_) return random_[static_cast<std::size_t>(step) % random_.size()];
    return read_batch(*text_, plan_, step, step * plan_.batch, 0);
  }

 private:
  const Plan& plan_;
  std::vector<Batch> random_;
  std::optional<Samples> text_;
};

void synchronize(at::Device device) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) at::cuda::getCurrentCUDAStream().synchronize();
#endif
  (void)device;
}

// Called after the warm-up steps, in which libraries try out their kernels.
void reset_peak(at::Device device) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
  (void)device;
}

// Peak memory of the device's allocator, or of the process.
std::int64_t peak_bytes(at::Device device) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda())
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
#endif
  (void)device;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

void probe(const Arguments& arguments) {
  NullSink events;
  ProbeOptions options;
  options.device = arguments.text("device", ""), options.precision = arguments.text("precision", "");
  options.threads = arguments.number("threads", 0);
  RealFileSystem files;
  value_or_throw(write_atomically(files, Path(arguments.text("probe", "")),
                                  to_json(probe_machine(options, events).hardware).dump(1)));
}

void add_prediction(const std::string& hardware, const Plan& plan, const ModelSpec& model,
                    OrderedJson& json) {
  const Cluster cluster = open_cluster(hardware);
  const DeviceMap map = DeviceMap::of_present(cluster);
  const StepPrediction step =
      StepSimulator({plan, model, cluster, map, optimus_software(), format_of(plan.precision)})
          .run(fitted_constants());
  json["predicted_seconds"] = step.seconds;
  json["predicted"] = {
      {"compute", step.split.compute}, {"optimizer", step.split.optimizer}, {"host", step.split.host}};
}

// Initialization from keys runs on the host and takes minutes for billions of parameters. For benchmarks, any
// values with the same distribution suffice.
void initialize_quickly(Parameters& parameters, std::int64_t seed) {
  at::manual_seed(static_cast<std::uint64_t>(seed));
  for (const LogicalTensor& tensor : parameters.tensors()) {
    at::Tensor master = parameters.master(tensor.name);
    switch (tensor.init.kind) {
      case InitKind::normal:
        master.normal_(0, tensor.init.deviation);
        break;
      case InitKind::ones:
        master.fill_(1);
        break;
      case InitKind::zeros:
      case InitKind::custom:
        master.zero_();
        break;
    }
  }
  parameters.round_masters();
}

void run(const Arguments& arguments) {
  if (!arguments.text("probe", "").empty()) return probe(arguments);
  const ModelOverrides overrides{.layers = arguments.given("layers"),
                                 .hidden = arguments.given("hidden"),
                                 .heads = arguments.given("heads"),
                                 .kv_heads = arguments.given("kv_heads"),
                                 .head_dim = arguments.given("head_dim"),
                                 .ffn = arguments.given("ffn"),
                                 .vocab = arguments.given("vocab"),
                                 .max_positions = arguments.given("max_positions")};
  ModelSpec model = with_overrides(open_model(arguments.text("model", "gpt2")), overrides);
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
  if (arguments.given("tied")) model.is_tied = arguments.number("tied", 1) != 0;
  UniformPlan shape{.microbatch = static_cast<int>(arguments.number("microbatch", 4)),
                    .batch = arguments.number("batch", 8),
                    .sequence_length = arguments.number("seq", 512)};
  shape.precision = parse_precision(arguments.text("precision", "fp32"), "precision");
  shape.strategy.recompute = parse_recompute(arguments.text("recompute", "none"), "recompute");
  shape.strategy.recompute_layers = static_cast<int>(arguments.number("recompute_layers", 1));
  const std::string file = arguments.text("plan", "");
  const Plan plan = file.empty() ? uniform_plan(model, shape) : read_plan(file);
  const at::Device device = parse_device(arguments.text("device", "cpu"));
  const int threads = set_num_threads(static_cast<int>(arguments.number("threads", 0)));
  Parameters parameters(plan, model, 0, device);
  if (arguments.number("quick", 0) == 0)
    parameters.initialize(1);
  else
    initialize_quickly(parameters, arguments.number("seed", 1));
  Engine engine(plan, model, parameters,
                {.device = device,
                 .records_steps = arguments.number("recording", 1) != 0,
                 .gemm_algorithm_file = Path(arguments.text("products", ""))});
  const Batches batches(arguments, plan, model);
  constexpr std::int64_t kWarmUp = 30;
  double highest = 0;
  option_value::parse(highest, arguments.text("lr", "1e-4"), "lr");
  const bool is_text = !arguments.text("tokens", "").empty();
  std::vector<double> seconds, losses, norms;
  StepReport report;
  OrderedJson json;
  const std::int64_t warm = arguments.number("warm", 2), steps = arguments.number("steps", 10);
  for (std::int64_t step = 0; step < warm + steps; ++step) {
    synchronize(device);
    if (step == warm) json["warm_peak_bytes"] = peak_bytes(device), reset_peak(device);
    const Batch batch = batches[step];
    const double rate =
        is_text && step < kWarmUp ? highest * static_cast<double>(step + 1) / kWarmUp : highest;
    const auto begin_time = std::chrono::steady_clock::now();
    report = engine.train_step(batch, {.learning_rate = rate}).value();
    synchronize(device);
    losses.push_back(report.loss), norms.push_back(report.grad_norm);
    if (step >= warm)
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double tokens = static_cast<double>(plan.batch * plan.sequence_length);
  const auto at = [&](double fraction) {
    return seconds[static_cast<std::size_t>(fraction * static_cast<double>(seconds.size() - 1))];
  };
  json["tokens_per_second"] = tokens / at(0.5);
  json["slow"] = tokens / at(0.9), json["fast"] = tokens / at(0.1);
  json["step_seconds"] = at(0.5);
  json["loss"] = report.loss;
  json["recording"] = engine.recording_status();
  json["threads"] = threads;
  json["parameters"] = num_parameters(model);
  json["state_bytes"] = parameters.bytes().value, json["arena_bytes"] = engine.arena_bytes().value;
  json["engine_bytes"] = engine.bytes().value;
  json["predicted_bytes"] = predicted_memory(plan, model, 0, device).value;
  json["peak_bytes"] = peak_bytes(device);
  if (arguments.number("losses", 0) != 0) json["losses"] = losses, json["norms"] = norms;
  if (const std::string hardware = arguments.text("hardware", ""); !hardware.empty())
    add_prediction(hardware, plan, model, json);
  fmt::print("{}\n", json.dump());
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    optimus::run({argc, argv});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return 1;
  }
}
