// The M of a command line with everything that commands need of it: what it is, its tokenizer, and where its weights are read
// from. A preset and a bare config.json have none; a Hugging Face folder, a run and a checkpoint of ours have. Pure: into an
// engine's memory they come by inference/inference.h and run/train.cpp.
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

// The weights of one model, wherever they lie. Safe to read from many threads.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // The values of a box of one logical tensor, row-major; nothing else of it is read. Throws UserError.
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const = 0;
  virtual void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const = 0;
  // All of it.
  void read(const LogicalTensor& tensor, std::span<float> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  void read(const LogicalTensor& tensor, std::span<double> out) const {
    read_box(tensor, Box(tensor.shape), out);
  }
  // Holds every value exactly.
  virtual ElementType type() const = 0;
  // Where they lie, for people: "folder tiny-llama".
  virtual std::string name() const = 0;
};

// The folder that M stands for: a run's newest whole checkpoint, else what was given.
std::string model_place(const std::string& model);

// The weights that belong to `model` (a name as open_model() takes it), checked against the spec; null when it has none. When
// the spec is not the folder's own, because dimensions were overridden, that is refused. Throws UserError.
std::unique_ptr<WeightSource> open_weights(const std::string& model, const ModelSpec& spec,
                                           EventSink& events);

struct OpenedModel {
  ModelSpec spec;
  Path folder;
  std::string tokenizer;  // as open_tokenizer() takes it
  std::unique_ptr<WeightSource> weights;
};
// A model that has weights; one without is refused. Throws UserError.
OpenedModel open_trained_model(const std::string& model, EventSink& events);

// The tokenizer for a model's texts: the one that was asked for, else the model's own, else bytes, of which a model with another
// vocabulary warns. Throws UserError.
std::unique_ptr<Tokenizer> tokenizer_for_text(const OpenedModel& model, const std::string& asked_for,
                                              EventSink& events);

}  // namespace optimus
