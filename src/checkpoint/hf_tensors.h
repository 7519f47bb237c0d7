// Maps logical tensors (model/tensors.h) to Hugging Face checkpoints. It finds tensors under the names that
// published files use, reads them from fused and transposed tensors, and assembles fused tensors for export.
// checkpoint/element.h converts numbers, checkpoint/safetensors.h handles the files, and names come from
// LogicalTensor::hf.
//
// Functions that read throw UserError with the file and the tensor.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "checkpoint/safetensors.h"
#include "model/tensors.h"

namespace optimus {

// Throws UserError if the folder does not match the model: a tensor is missing, has the wrong shape or is not
// of a float type, or a separate head differs from the embedding to which the config ties it. Unused tensors
// that are known to be irrelevant (masks, position ids, BERT's other heads) are ignored. Any other unused
// tensor causes a warning.
void check_hf_weights(const SafetensorsFolder& folder, const ModelSpec& spec, EventSink& events);

// Reads the values of `box` from one logical tensor in row-major order. out.size() must be
// box.num_elements().
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
// Groups logical tensors by the checkpoint tensor that contains them. The checkpoint tensors are in the order
// of their first parts. The parts cover each checkpoint tensor exactly once.
std::vector<HfTensor> hf_tensors(const std::vector<LogicalTensor>& tensors);

// Copies the values of a logical tensor to their positions in the checkpoint tensor.
void place_logical(const LogicalTensor& tensor, std::span<const float> values, std::span<float> whole);
void place_logical(const LogicalTensor& tensor, std::span<const double> values, std::span<double> whole);

struct HfExport {
  ElementType type = ElementType::f32;  // any float type
  // The maximum size of a shard's data. A shard with a single tensor may be larger.
  Bytes max_shard_size{std::int64_t{5} << 30};
};

// A function that writes the values of one logical tensor to `out` in row-major order.
template <typename Real>
using ReadTensor = std::function<void(const LogicalTensor& tensor, std::span<Real> out)>;

// Writes model.safetensors, or shards followed by their index, to an existing folder. Only one tensor at a
// time is in memory. After a failure, no incomplete file has its final name, but complete shards without an
// index may remain.
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<float>& read,
                               const HfExport& options);
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<double>& read,
                               const HfExport& options);

}  // namespace optimus
