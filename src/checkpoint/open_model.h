// Opens a model that a command line names: its spec, its tokenizer and the source of its weights. A preset or
// a bare config.json has no weights; a Hugging Face folder, a run and a checkpoint have weights.
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
  // Reads only the values of `box` of one logical tensor, row-major. Throws ReportedError.
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const = 0;
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const = 0;
  // Reads the whole tensor.
  void read(const LogicalTensor& tensor, std::span<float> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  void read(const LogicalTensor& tensor, std::span<double> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  // An element type that represents every weight exactly.
  virtual ElementType type() const = 0;
  // The name of the source in messages: "folder tiny-llama".
  virtual std::string name() const = 0;
};

// The folder that `model` refers to: the newest complete checkpoint of a run, else `model` itself.
std::string model_path_of(const std::string& model);

// Opens the weights that belong to `model` (in the form that open_model() accepts) and checks that they
// match `spec`. Returns null if the model has no weights. Throws UserError, also if dimensions were
// overridden and `spec` differs from the spec of the folder.
std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events);

struct OpenedModel {
  ModelSpec spec;
  Path folder;
  std::string tokenizer;  // in the form that open_tokenizer() accepts
  std::unique_ptr<WeightSource> weights;
};
// Opens a model that has weights. Throws ReportedError, also if the model has no weights.
OpenedModel open_trained_model(const std::string& model, EventSink& events);

// Returns the tokenizer for a model's texts: the requested one, otherwise the model's own, otherwise the
// byte tokenizer, with a warning if the model's vocabulary has another size. Throws UserError.
std::unique_ptr<Tokenizer> tokenizer_for_text(const OpenedModel& model, const std::string& requested,
                                              EventSink& events);

}  // namespace optimus
