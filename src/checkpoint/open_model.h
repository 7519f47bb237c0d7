// Opens the M of a command line: the model's shape, its tokenizer and the source of its weights. A preset
// and a bare config.json have no weights; a Hugging Face folder, a run and a checkpoint have. Pure:
// inference/inference.h and run/train.cpp load the weights into an engine.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/event.h"
#include "base/file.h"
#include "checkpoint/element.h"
#include "model/tensors.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// Reads the weights of one model from their files. Thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Reads the values of a box of one logical tensor, row-major, and nothing else of it. Throws
  // ReportedError.
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const = 0;
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const = 0;
  // Reads the whole tensor.
  void read(const LogicalTensor& tensor, std::span<float> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  void read(const LogicalTensor& tensor, std::span<double> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  // A type that represents every value exactly.
  virtual ElementType type() const = 0;
  // The source for messages: "folder tiny-llama".
  virtual std::string name() const = 0;
};

// The folder that `model` refers to: the newest complete checkpoint of a run, else `model` itself.
std::string model_path_of(const std::string& model);

// Opens the weights that belong to `model` (a name as open_model() takes it) and checks them against the
// spec; null if it has none. Throws UserError, also if dimensions were overridden and the spec differs from
// the folder's own.
std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events);

struct OpenedModel {
  ModelSpec spec;
  Path folder;
  std::string tokenizer;  // a name as open_tokenizer() takes it
  std::unique_ptr<WeightSource> weights;
};
// Opens a model that has weights. Throws ReportedError, also if it has none.
OpenedModel open_trained_model(const std::string& model, EventSink& events);

// The tokenizer for a model's texts: the requested one, else the model's own, else bytes, with a warning if
// the model's vocabulary has another size. Throws UserError.
std::unique_ptr<Tokenizer> tokenizer_for_text(const OpenedModel& model, const std::string& requested,
                                              EventSink& events);

}  // namespace optimus
