// Opens a model that was specified on the command line: its spec, its tokenizer and the source of its
// weights. A Hugging Face folder, a run and a checkpoint have weights. A preset or a separate config.json
// does not. inference/inference.h and run/train.cpp load the weights into an engine.
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
  // Reads only the values of `box` from one logical tensor in row-major order. Throws ReportedError.
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const = 0;
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const = 0;
  // Reads the whole tensor.
  void read(const LogicalTensor& tensor, std::span<float> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  void read(const LogicalTensor& tensor, std::span<double> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  // An element type that can represent all weights exactly.
  virtual ElementType type() const = 0;
  // The name of the source for messages, for example "folder tiny-llama".
  virtual std::string name() const = 0;
};

// The folder that `model` refers to: the newest complete checkpoint if it is a run, otherwise `model` itself.
std::string model_path_of(const std::string& model);

// Opens the weights of `model`, which is an argument for open_model(), and checks that they match `spec`.
// Returns null if the model has no weights. Throws UserError if the weights are invalid, or if dimensions
// were overridden so that `spec` differs from the spec of the folder.
std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events);

struct OpenedModel {
  ModelSpec spec;
  Path folder;
  std::string tokenizer;  // in the form that open_tokenizer() accepts
  std::unique_ptr<WeightSource> weights;
};
// Opens a model that has weights. Throws ReportedError if the model has no weights or cannot be opened.
OpenedModel open_trained_model(const std::string& model, EventSink& events);

// Returns the tokenizer for a model: the requested tokenizer, otherwise the tokenizer in the model's folder,
// otherwise the byte tokenizer. Reports a warning if the byte tokenizer does not match the vocabulary size of
// the model. Throws UserError.
std::unique_ptr<Tokenizer> tokenizer_for_text(const OpenedModel& model, const std::string& requested,
                                              EventSink& events);

}  // namespace optimus
