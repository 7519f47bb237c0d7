// Trains a Hugging Face folder on one fixed batch and writes down everything that a test wants to compare
// (engine_parity.py).
//
//   engine_tool REQUEST.json
//
// Writes logits, losses, gradient norms, the first step's gradients and the parameters after all steps, under
// Hugging Face's names, as a safetensors file. The request's keys are those of `Request` below.
#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "base/json.h"
#include "checkpoint/hf_tensors.h"
#include "engine/engine.h"
#include "model/open.h"

namespace optimus {
namespace {

struct Request {
  Json json;
  std::string word(const char* key) const { return json.at(key).get<std::string>(); }
  double number(const char* key) const { return json.at(key).get<double>(); }
};

std::vector<std::int64_t> integers(const SafetensorsFile& file, const char* name) {
  const StoredTensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->type != ElementType::i64)
    throw UserError("the batch has no I64 tensor {}", name);
  std::vector<std::int64_t> values(tensor->bytes.size() / 8);
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

std::vector<Sample> read_samples(const SafetensorsFile& file) {
  const std::vector<std::int64_t> inputs = integers(file, "inputs"), targets = integers(file, "targets");
  const std::vector<std::int64_t>& shape = file.find("inputs")->shape;
  std::vector<Sample> samples(static_cast<std::size_t>(shape.at(0)));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto length = static_cast<std::size_t>(shape.at(1));
    Sample& sample = samples[i / length];
    sample.inputs.push_back(static_cast<TokenId>(inputs[i]));
    sample.targets.push_back(static_cast<TokenId>(targets[i]));
    sample.positions.push_back(static_cast<std::int32_t>(i % length));
    sample.num_targets += targets[i] != kNoTarget;
  }
  return samples;
}

// What is written at the end, in order.
class Output {
 public:
  explicit Output(bool is_double) : type_(is_double ? ElementType::f64 : ElementType::f32) {}
  void add(const std::string& name, std::vector<std::int64_t> shape, std::vector<double> values) {
    headers_.push_back({name, type_, std::move(shape)});
    values_.push_back(std::move(values));
  }
  void add_parameters(const Parameters& parameters, const std::string& prefix, at::Tensor BlockState::*member,
                      double factor) {
    for (const HfTensor& whole : hf_tensors(parameters.tensors())) {
      std::vector<double> values(static_cast<std::size_t>(whole.shape.num_elements()));
      for (const LogicalTensor& part : whole.parts)
        place_logical(part, parameters.get(part.name, member), values);
      for (double& value : values) value *= factor;
      std::vector<std::int64_t> shape(whole.shape.dims.begin(),
                                      whole.shape.dims.begin() + whole.shape.num_dims);
      add(prefix + whole.name, std::move(shape), std::move(values));
    }
  }
  void write(const Path& path) {
    RealFileSystem files;
    SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, path, headers_));
    for (const std::vector<double>& values : values_) {
      std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(width(type_)));
      encode(type_, std::span<const double>(values), bytes);
      value_or_throw(writer.write(bytes));
    }
    value_or_throw(writer.commit());
  }

 private:
  ElementType type_;
  std::vector<TensorHeader> headers_;
  std::vector<std::vector<double>> values_;
};

std::vector<double> to_host(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.to(at::kCPU, at::kDouble).contiguous();
  return {copy.data_ptr<double>(), copy.data_ptr<double>() + copy.numel()};
}

Plan plan_of(const Request& request, const ModelSpec& model, std::int64_t batch, std::int64_t length,
             int microbatch) {
  UniformPlan shape{.microbatch = microbatch, .batch = batch, .sequence_length = length};
  shape.precision = parse_precision(request.word("precision"), "precision");
  shape.strategy.recompute = parse_recompute(request.word("recompute"), "recompute");
  shape.strategy.recompute_layers = request.json.at("recompute_layers").get<int>();
  return uniform_plan(model, shape);
}

void run(const Request& request) {
  ModelSpec model = open_model(request.word("config"));
  model.embedding_dropout = model.hidden_dropout = model.attention_dropout = request.number("dropout");
  const SafetensorsFile batch_file = SafetensorsFile::open(request.word("batch"));
  const std::vector<Sample> samples = read_samples(batch_file);
  const std::int64_t count = std::ssize(samples), length = std::ssize(samples[0].inputs);
  const Plan plan = plan_of(request, model, count, length, request.json.at("microbatch").get<int>());
  const EngineOptions options{.device = parse_device(request.word("device"))};
  Parameters parameters(plan, model, 0, options.device);
  const SafetensorsFolder folder = SafetensorsFolder::open(request.word("config"));
  for (const LogicalTensor& tensor : parameters.tensors()) {
    std::vector<double> values(static_cast<std::size_t>(tensor.shape.num_elements()));
    read_logical(folder, tensor, std::span<double>(values));
    parameters.set(tensor.name, values);
  }
  Output output(plan.precision == Precision::fp64);
  {
    const Plan whole = plan_of(request, model, count, length, static_cast<int>(count));
    Engine engine(whole, model, parameters, options);
    output.add("logits", {count, length, model.vocab},
               to_host(engine.logits(make_batch(samples, whole, 0, 0))));
  }
  Engine engine(plan, model, parameters, options);
  const Batch batch = make_batch(samples, plan, 0, 0);
  const UpdateOptions update{request.number("lr"),           request.number("beta1"),
                             request.number("beta2"),        request.number("epsilon"),
                             request.number("weight_decay"), request.number("clip")};
  const auto steps = request.json.at("steps").get<std::int64_t>();
  std::vector<double> losses, norms;
  for (std::int64_t step = 0; step < steps; ++step) {
    const double scale = plan.precision == Precision::fp16 ? engine.loss_scale.value : 1;
    const StepReport report = engine.train_step(batch, update).value();
    losses.push_back(report.loss), norms.push_back(report.grad_norm);
    if (step == 0)
      output.add_parameters(parameters, "grad/", &BlockState::gradients,
                            1 / (scale * static_cast<double>(batch.num_targets)));
  }
  output.add("losses", {steps}, losses);
  output.add("grad_norms", {steps}, norms);
  output.add_parameters(parameters, "param/", &BlockState::masters, 1);
  output.write(request.word("out"));
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw optimus::UserError("usage: engine_tool REQUEST.json");
    const std::string text = optimus::value_or_throw(optimus::read_file(argv[1]));
    optimus::run({optimus::Json::parse(text)});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_tool: {}\n", error.what());
    return 1;
  }
}
