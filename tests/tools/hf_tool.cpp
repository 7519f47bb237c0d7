// The logits of a Hugging Face folder, opened as the commands open it (hf_parity.py).
//
//   hf_tool FOLDER IDS.safetensors OUT.safetensors PRECISION
//
// IDS holds one I64 tensor, "ids" [sequences, length]; OUT gets F64 "logits" [sequences, length, vocabulary].
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "inference/inference.h"

namespace optimus {
namespace {

std::vector<Sample> read_samples(const Path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const StoredTensor* ids = file.find("ids");
  if (ids == nullptr || ids->type != ElementType::i64 || ids->shape.size() != 2)
    throw UserError("{} has no I64 tensor ids of two dimensions", path.string());
  std::vector<std::int64_t> values(ids->bytes.size() / 8);
  std::memcpy(values.data(), ids->bytes.data(), ids->bytes.size());
  const auto length = static_cast<std::size_t>(ids->shape[1]);
  std::vector<Sample> samples(static_cast<std::size_t>(ids->shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Sample& sample = samples[i / length];
    sample.inputs.push_back(static_cast<TokenId>(values[i]));
    sample.targets.push_back(kNoTarget);
    sample.positions.push_back(static_cast<std::int32_t>(i % length));
  }
  return samples;
}

void run(const std::string& folder, const Path& ids, const Path& out, const std::string& precision) {
  NullSink events;
  Inference model = open_for_inference(folder, {.precision = precision, .device = "cpu"}, events);
  const std::vector<Sample> samples = read_samples(ids);
  const auto count = std::ssize(samples), length = std::ssize(samples.at(0).inputs);
  const Plan plan = inference_plan(model.opened.spec, model.precision, count, length);
  Engine engine(plan, model.opened.spec, model.parameters, {});
  const at::Tensor logits = engine.logits(make_batch(samples, plan, 0, 0)).to(at::kDouble).contiguous();
  const std::vector<TensorHeader> headers{
      {"logits", ElementType::f64, {count, length, model.opened.spec.vocab}}};
  RealFileSystem files;
  SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, out, headers));
  value_or_throw(writer.write(
      std::as_bytes(std::span(logits.const_data_ptr<double>(), static_cast<std::size_t>(logits.numel())))));
  value_or_throw(writer.commit());
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw optimus::UserError("usage: hf_tool FOLDER IDS OUT PRECISION");
    optimus::run(argv[1], argv[2], argv[3], argv[4]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "hf_tool: {}\n", error.what());
    return 1;
  }
}
