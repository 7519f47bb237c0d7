// Maps logical tensors (model/tensors.h) to Hugging Face checkpoints: finds them under the names that
// published files use, reads them from fused and transposed tensors, and assembles these again for export.
// Conversion of numbers is in checkpoint/element.h, files are in checkpoint/safetensors.h, and names come
// from LogicalTensor::hf.
//
// Functions that read throw a UserError that names file and tensor.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "checkpoint/safetensors.h"
#include "model/tensors.h"

namespace optimus {

// Throws a UserError if the folder does not match the model: a tensor is missing, has another shape or is
// not of a float type, or a separate head differs from the embedding although the config ties them. Unused
// tensors that are known to be irrelevant (masks, position ids, BERT's other heads) are ignored; any other
// unused tensor causes a warning.
void check_hf_weights(const SafetensorsFolder& folder, const ModelSpec& spec, EventSink& events);

// Reads the values of `box` of one logical tensor, row-major. out.size() == box.num_elements().
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<float> out);
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<double> out);
// Reads the entire tensor.
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<float> out);
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<double> out);

// A tensor of the checkpoint and the logical tensors that it consists of.
struct HfTensor {
  std::string name;
  Shape shape;
  std::vector<LogicalTensor> parts;
};
// Groups logical tensors by the checkpoint tensor that contains them, in the order of their first parts.
// The parts of each checkpoint tensor cover it exactly once.
std::vector<HfTensor> hf_tensors(const std::vector<LogicalTensor>& tensors);

// Copies the values of a logical tensor to their positions in the checkpoint tensor.
void place_logical(const LogicalTensor& tensor, std::span<const float> values, std::span<float> whole);
void place_logical(const LogicalTensor& tensor, std::span<const double> values, std::span<double> whole);

struct HfExport {
  ElementType type = ElementType::f32;  // any float type
  // maximum size of one shard's data; a single tensor may be larger
  Bytes largest_shard{std::int64_t{5} << 30};
};

// Writes the values of one logical tensor, row-major, into `out`.
template <typename Real>
using ReadTensor = std::function<void(const LogicalTensor& tensor, std::span<Real> out)>;

// Writes model.safetensors, or shards followed by their index, into an existing folder. Only one tensor at a
// time is in memory. After a failure no incomplete file has a final name; finished shards without an index
// may remain.
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<float>& read,
                               const HfExport& options);
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<double>& read,
                               const HfExport& options);

}  // namespace optimus
