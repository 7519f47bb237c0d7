// See open_model.h.
#include "run/open_model.h"

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf_tensors.h"
#include "data/tokenizer.h"
#include "model/open.h"
#include "model/presets.h"

namespace optimus {
namespace {

// The narrowest type that holds all values of the tensors that the model uses.
ElementType common_type(const SafetensorsFolder& folder) {
  bool has_bf16 = false, has_f16 = false, has_f32 = false;
  for (const SafetensorsFile& file : folder.files())
    for (const StoredTensor& tensor : file.tensors()) {
      if (tensor.type == ElementType::f64) return ElementType::f64;
      has_bf16 |= tensor.type == ElementType::bf16;
      has_f16 |= tensor.type == ElementType::f16;
      has_f32 |= tensor.type == ElementType::f32;
    }
  if (has_f32 || has_bf16 == has_f16) return ElementType::f32;
  return has_bf16 ? ElementType::bf16 : ElementType::f16;
}

class HfWeights final : public WeightSource {
 public:
  HfWeights(SafetensorsFolder folder, const ModelSpec& spec, EventSink& events)
      : folder_(std::move(folder)), type_(common_type(folder_)) {
    check_hf_weights(folder_, spec, events);
  }
  void read(const LogicalTensor& tensor, std::span<float> out) const override {
    read_logical(folder_, tensor, out);
  }
  void read(const LogicalTensor& tensor, std::span<double> out) const override {
    read_logical(folder_, tensor, out);
  }
  ElementType type() const override { return type_; }
  std::string name() const override { return "folder " + folder_.path().string(); }

 private:
  SafetensorsFolder folder_;
  ElementType type_;
};

bool is_there(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool has_hf_weights(const Path& folder) {
  // A file of another library is said to be one by whoever opens the folder.
  return is_there(folder / kWeightsFile) || is_there(folder / kWeightsIndex) ||
         is_there(folder / "pytorch_model.bin");
}

// What the numbers in the folder are for. Rotary positions and dropout have none.
bool is_same_model(ModelSpec a, ModelSpec b) {
  for (ModelSpec* spec : {&a, &b}) {
    spec->name.clear();
    spec->embedding_dropout = spec->hidden_dropout = spec->attention_dropout = 0;
    if (spec->positions == PositionKind::rope) spec->max_positions = 0;
  }
  return a == b;
}

}  // namespace

std::string model_place(const std::string& model) { return model; }

std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events) {
  if (find_preset(model)) return nullptr;
  const Path folder = model_place(model);
  if (!has_hf_weights(folder)) return nullptr;
  if (!is_same_model(spec, open_model(folder.string())))
    throw UserError(
        "{} has weights, and dimensions that were overridden do not fit them; leave the overrides away, or "
        "say "
        "--from-scratch",
        folder.string());
  return std::make_unique<HfWeights>(SafetensorsFolder::open(folder), spec, events);
}

OpenedModel open_trained_model(const std::string& model, EventSink& events) {
  OpenedModel opened;
  opened.folder = model_place(model);
  opened.spec = open_model(opened.folder.string());
  opened.weights = open_weights(model, opened.spec, events);
  if (opened.weights == nullptr)
    throw UserError(
        "{} is {} without weights; give a Hugging Face folder that has them, a run or a checkpoint",
        in_quotes(model, 300), find_preset(model) ? "a preset" : "a model");
  opened.tokenizer = usual_tokenizer(opened.folder.string());
  return opened;
}

}  // namespace optimus
