// Implements learned_policy.h: reads and writes policy files.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "policy/learned_policy.h"

namespace optimus {
namespace {

constexpr const char* kPolicyFormat = "optimus-policy-1";

struct PolicyTensor {
  const char* name;
  std::size_t begin;
  std::vector<std::int64_t> shape;
};

std::vector<PolicyTensor> policy_tensors() {
  constexpr auto kInputs = static_cast<std::int64_t>(kFeatures),
                 kFirstUnits = static_cast<std::int64_t>(kFirstLayer),
                 kSecondUnits = static_cast<std::int64_t>(kSecondLayer);
  return {{"first.weight", LearnedPolicy::kFirst, {kInputs, kFirstUnits}},
          {"first.bias", LearnedPolicy::kFirstBias, {kFirstUnits}},
          {"second.weight", LearnedPolicy::kSecond, {kFirstUnits, kSecondUnits}},
          {"second.bias", LearnedPolicy::kSecondBias, {kSecondUnits}},
          {"last.weight", LearnedPolicy::kLast, {kSecondUnits}}};
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t length : shape) count *= static_cast<std::size_t>(length);
  return count;
}

void read_tensor(const SafetensorsContent& content, const std::string& name,
                 const std::vector<std::int64_t>& shape, std::span<float> values, const std::string& source) {
  const auto tensor = std::find_if(content.tensors.begin(), content.tensors.end(),
                                   [&](const StoredTensor& candidate) { return candidate.name == name; });
  if (tensor == content.tensors.end())
    throw UserError("{}: tensor {} is missing; the file is not a learned policy", source, name);
  if (tensor->type != ElementType::f32 || tensor->shape != shape)
    throw UserError("{}: tensor {}: expected F32 {}, got {} {}", source, name, shape_text(shape),
                    text(tensor->type), shape_text(tensor->shape));
  decode(tensor->type, tensor->bytes, values);
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
    throw UserError("{}: tensor {} has non-finite values", source, name);
}

}  // namespace

LearnedPolicy parse_learned_policy(std::span<const std::byte> file, const std::string& source) {
  const SafetensorsContent content = parse_safetensors(file, source);
  const auto format = content.metadata.find("format");
  if (format == content.metadata.end() || format->second != kPolicyFormat)
    throw UserError("{}: expected format {}, got {}", source, kPolicyFormat,
                    format == content.metadata.end() ? "none" : in_quotes(format->second));
  LearnedPolicy network;
  for (const PolicyTensor& tensor : policy_tensors())
    read_tensor(content, tensor.name, tensor.shape,
                std::span(network.numbers).subspan(tensor.begin, count_of(tensor.shape)), source);
  read_tensor(content, "low", {static_cast<std::int64_t>(kFeatures)}, network.min_values, source);
  read_tensor(content, "high", {static_cast<std::int64_t>(kFeatures)}, network.max_values, source);
  for (std::size_t i = 0; i < kFeatures; ++i)
    if (network.min_values[i] > network.max_values[i])
      throw UserError("{}: the range of {} is reversed: {} to {}", source, feature_names()[i],
                      network.min_values[i], network.max_values[i]);
  network.origin = content.metadata;
  const auto without = network.origin.find(kWithout);
  network.uses_prediction_errors = without == network.origin.end() || without->second != kResidual;
  return network;
}

LearnedPolicy read_learned_policy(const Path& path) {
  const std::string bytes = read_input_file(path, Bytes(1 << 20));
  return parse_learned_policy(std::as_bytes(std::span(bytes)), path.string());
}

void write_learned_policy(const LearnedPolicy& network, const Path& path) {
  std::vector<TensorHeader> headers;
  std::vector<std::span<const float>> values;
  const auto put = [&](const char* name, const std::vector<std::int64_t>& shape,
                       std::span<const float> numbers) {
    headers.push_back({name, ElementType::f32, shape});
    values.push_back(numbers);
  };
  for (const PolicyTensor& tensor : policy_tensors())
    put(tensor.name, tensor.shape, std::span(network.numbers).subspan(tensor.begin, count_of(tensor.shape)));
  put("low", {static_cast<std::int64_t>(kFeatures)}, network.min_values);
  put("high", {static_cast<std::int64_t>(kFeatures)}, network.max_values);
  SafetensorsMetadata metadata = network.origin;
  metadata["format"] = kPolicyFormat;
  RealFileSystem files;
  SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, path, headers, metadata));
  for (const std::span<const float> tensor_values : values)
    value_or_throw(writer.write(std::as_bytes(tensor_values)));
  value_or_throw(writer.commit());
}

const LearnedPolicy& shipped_policy() {
  static constexpr unsigned char kFile[] = {
#include "policy/shipped_policy.inc"
  };
  static const LearnedPolicy network =
      parse_learned_policy(std::as_bytes(std::span(kFile)), "the shipped policy");
  return network;
}

}  // namespace optimus
