// Implements open_model.h: weights from Hugging Face folders and from checkpoints.
#include "checkpoint/open_model.h"

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/hf_tensors.h"
#include "model/open.h"
#include "model/presets.h"
#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

// The smallest floating-point type that represents all values of all added types.
class CommonType {
 public:
  void add(ElementType type) {
    if (!is_float(type)) return;
    const bool is_unchanged = !type_ || *type_ == type;
    const bool is_either_double = type == ElementType::f64 || type_ == ElementType::f64;
    type_ = is_unchanged ? type : is_either_double ? ElementType::f64 : ElementType::f32;
  }
  ElementType get() const { return type_.value_or(ElementType::f32); }

 private:
  std::optional<ElementType> type_;
};

ElementType common_type(const SafetensorsFolder& folder) {
  CommonType type;
  for (const SafetensorsFile& file : folder.files())
    for (const StoredTensor& tensor : file.tensors()) type.add(tensor.type);
  return type.get();
}

class HfWeights final : public WeightSource {
 public:
  HfWeights(SafetensorsFolder folder, const ModelSpec& spec, EventSink& events)
      : folder_(std::move(folder)), type_(common_type(folder_)) {
    check_hf_weights(folder_, spec, events);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    read_logical(folder_, tensor, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    read_logical(folder_, tensor, box, out);
  }
  ElementType type() const override { return type_; }
  std::string name() const override { return "folder " + folder_.path().string(); }

 private:
  SafetensorsFolder folder_;
  ElementType type_;
};

class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(Checkpoint checkpoint, const ModelSpec& spec) : checkpoint_(std::move(checkpoint)) {
    for (const LogicalTensor& tensor : logical_tensors(spec)) {
      const CheckpointTensor* saved = checkpoint_.find(tensor.name);
      if (saved == nullptr || saved->shape != tensor.shape)
        throw UserError("{}: tensor {} {}, but config.json requires shape {}", checkpoint_.folder().string(),
                        in_quotes(tensor.name, 200),
                        saved == nullptr ? "is missing" : "has shape " + text(saved->shape),
                        text(tensor.shape));
      type_.add(checkpoint_.type_of(StateField::master, tensor.name));
    }
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    checkpoint_.read(StateField::master, tensor.name, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    checkpoint_.read(StateField::master, tensor.name, box, out);
  }
  ElementType type() const override { return type_.get(); }
  std::string name() const override { return "checkpoint " + checkpoint_.folder().string(); }

 private:
  Checkpoint checkpoint_;
  CommonType type_;
};

bool path_exists(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool has_hf_weights(const Path& folder) {
  // A weight file in an unsupported format is also treated as weights, so that opening the folder reports the
  // problem.
  return path_exists(folder / kWeightsFile) || path_exists(folder / kWeightsIndex) ||
         path_exists(folder / "pytorch_model.bin");
}

// Whether the weights for one spec fit the other. Names, dropout rates and the maximum length with rotary
// positions do not affect weights.
bool is_same_model(ModelSpec a, ModelSpec b) {
  for (ModelSpec* spec : {&a, &b}) {
    spec->name.clear();
    spec->embedding_dropout = spec->hidden_dropout = spec->attention_dropout = 0;
    if (spec->positions == PositionKind::rope) spec->max_positions = 0;
  }
  return a == b;
}

}  // namespace

std::string model_path_of(const std::string& model) {
  if (model.empty() || find_preset(model)) return model;
  const Path folder = model;
  const bool is_hf = path_exists(folder / "config.json") && !path_exists(folder / kManifestFile);
  const bool is_run = path_exists(folder / kCheckpointsFolder) || path_exists(folder / "metrics.jsonl");
  return !is_hf && is_run ? find_checkpoint(folder).string() : model;
}

std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events) {
  if (find_preset(model)) return nullptr;
  const Path folder = model_path_of(model);
  const bool is_checkpoint = path_exists(folder / kManifestFile);
  if (!is_checkpoint && !has_hf_weights(folder)) return nullptr;
  if (spec.is_mixture())
    throw UserError(
        "{} is a mixture of experts, which can be planned and simulated, but its weights cannot be read yet",
        folder.string());
  if (!is_same_model(spec, open_model(folder.string())))
    throw UserError(
        "the weights in {} do not fit the overridden dimensions; remove the overrides, or pass "
        "--from-scratch",
        folder.string());
  if (is_checkpoint) return std::make_unique<CheckpointWeights>(Checkpoint::open(folder), spec);
  return std::make_unique<HfWeights>(SafetensorsFolder::open(folder), spec, events);
}

OpenedModel open_trained_model(const std::string& model, EventSink& events) {
  OpenedModel result;
  result.folder = model_path_of(model);
  if (path_exists(result.folder / kManifestFile) && !path_exists(result.folder / "config.json"))
    throw UserError(
        "{} is a checkpoint of a model built from torch::nn modules; only `optimus train` can use it",
        result.folder.string());
  result.spec = open_model(result.folder.string());
  result.weights = open_weights(result.folder.string(), result.spec, events);
  if (result.weights == nullptr)
    throw UserError(
        "{} is {} without weights; pass a Hugging Face folder with weights, a run or a checkpoint",
        in_quotes(model, 300), find_preset(model) ? "a preset" : "a model");
  result.tokenizer = default_tokenizer(result.folder.string());
  return result;
}

std::unique_ptr<Tokenizer> tokenizer_for_text(const OpenedModel& model, const std::string& requested,
                                              EventSink& events) {
  auto tokenizer = open_tokenizer(requested.empty() ? model.tokenizer : requested);
  const bool is_guess = requested.empty() && model.tokenizer == "bytes";
  if (is_guess && tokenizer->vocab_size() != model.spec.vocab)
    events.report(Warning{fmt::format(
        "{} has no tokenizer.json; text is read as bytes, although the model's vocabulary has {} tokens",
        model.folder.string(), model.spec.vocab)});
  return tokenizer;
}

}  // namespace optimus
