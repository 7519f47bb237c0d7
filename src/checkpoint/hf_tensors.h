// Logical tensors (model/tensors.h) in Hugging Face checkpoints: found under the names that real files use,
// read out of fused and transposed ones, and put together again for export. Conversion of numbers is
// checkpoint/element.h; files are checkpoint/safetensors.h; names come from LogicalTensor::hf.
//
// Functions that read throw UserError, naming file and tensor.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "checkpoint/safetensors.h"
#include "model/tensors.h"

namespace optimus {

// Refuses a folder that is not this model: a tensor missing, of another shape, or not of floats; a head of its
// own in a model whose config ties it. Tensors that the model has no use for are passed over when a table in
// the source file knows them (masks, position ids, BERT's other heads), else reported as a warning.
void check_hf_weights(const SafetensorsFolder& folder, const ModelSpec& spec, EventSink& events);

// The values of `box` of one logical tensor, row-major. out.size() == box.num_elements().
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<float> out);
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<double> out);
// All of it.
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<float> out);
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<double> out);

// A tensor of the checkpoint and the logical tensors that it is made of.
struct HfTensor {
  std::string name;
  Shape shape;
  std::vector<LogicalTensor> parts;
};
// In the order of their first parts. Together the parts cover each tensor once.
std::vector<HfTensor> hf_tensors(const std::vector<LogicalTensor>& tensors);

// Puts a logical tensor's values at their place in the checkpoint's tensor.
void place_logical(const LogicalTensor& tensor, std::span<const float> values, std::span<float> whole);
void place_logical(const LogicalTensor& tensor, std::span<const double> values, std::span<double> whole);

struct HfExport {
  ElementType type = ElementType::f32;         // any float type
  Bytes largest_shard{std::int64_t{5} << 30};  // of data; one tensor alone may be larger
};

// Fills the values of one logical tensor, row-major.
template <typename Real>
using ReadTensor = std::function<void(const LogicalTensor& tensor, std::span<Real> out)>;

// Writes model.safetensors, or shards and then their index, into a folder that exists. One tensor at a time
// is in memory. A failure leaves no file that looks whole, except finished shards without an index.
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<float>& read,
                               const HfExport& options);
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<double>& read,
                               const HfExport& options);

}  // namespace optimus
