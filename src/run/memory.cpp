// See memory.h.
#include "run/memory.h"

#ifdef OPTIMUS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "kernels/attention_cudnn.h"
#include "schedule/program.h"

namespace optimus {

namespace {

// On CUDA, fused attention sums the queries' gradients in fp32 and, where heads share keys and values, has those of every head
// before it adds them up; through PyTorch (CudnnAttention not built) it also returns all of them in tensors of its own, which
// are then copied. Products have their workspace. With PyTorch's the sum comes within 0.5 % of the allocator's peaks of six
// runs on an H200 (5 to 42 GiB) and within 1 % of eleven others (2 to 48 GiB; docs/testing.md), without within 0.5 % of five (22
// to 68 GiB; docs/performance.md).
Bytes library_memory(const Plan& plan, const ModelSpec& model, at::Device device) {
  const bool is_narrow = plan.precision == Precision::bf16 || plan.precision == Precision::fp16;
  if (!device.is_cuda() || !is_narrow || model.heads == 0) return Bytes(0);
  const std::vector<int>& microbatches = plan.pipelines[0].microbatches;
  const std::int64_t tokens =
      *std::max_element(microbatches.begin(), microbatches.end()) * plan.sequence_length;
  const std::int64_t element = bytes_of(plan.precision);
  std::int64_t a_token = model.query_width() * 4;
  if (CudnnAttention::is_built())
    a_token += model.kv_heads < model.heads ? 2 * model.query_width() * element : 0;
  else
    a_token += (model.query_width() + 2 * model.kv_width()) * element;
  return Bytes(tokens * a_token + (std::int64_t{64} << 20));
}

}  // namespace

Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int rank, at::Device device) {
  const Program program = compile(plan, model, rank);
  const MemoryUse use = memory_use(program);
  const Arena arena = plan_arena(program);
  return use.weights + use.gradients + use.optimizer + arena.bytes + arena.outside +
         library_memory(plan, model, device);
}

namespace {

std::optional<Bytes> processor_memory(const std::string& line) {
  std::ifstream info("/proc/meminfo");
  for (std::string name, rest; info >> name; std::getline(info, rest))
    if (std::int64_t kibibytes = 0; name == line && info >> kibibytes) return Bytes(kibibytes * 1024);
  return std::nullopt;
}

struct CudaMemory {
  std::size_t free = 0, total = 0;
};
std::optional<CudaMemory> cuda_memory() {
#ifdef OPTIMUS_CUDA
  CudaMemory memory;
  if (cudaMemGetInfo(&memory.free, &memory.total) == cudaSuccess) return memory;
#endif
  return std::nullopt;
}

}  // namespace

std::optional<Bytes> free_memory(at::Device device) {
  if (!device.is_cuda()) return processor_memory("MemAvailable:");
  const std::optional<CudaMemory> memory = cuda_memory();
  return memory ? std::optional(Bytes(static_cast<std::int64_t>(memory->free))) : std::nullopt;
}

Bytes total_memory(at::Device device) {
  if (!device.is_cuda()) return processor_memory("MemTotal:").value_or(Bytes(0));
  return Bytes(static_cast<std::int64_t>(cuda_memory().value_or(CudaMemory{}).total));
}

void refuse_too_large(const Plan& plan, const ModelSpec& model, at::Device device, Bytes held) {
  // Workers on processors share the memory of their machine.
  const int sharing = device.is_cuda() ? 1 : num_devices(plan);
  const Bytes needed =
      Bytes(predicted_memory(plan, model, plan.pipelines[0].stages[0].devices[0], device).value * sharing);
  std::optional<Bytes> free = free_memory(device);
  if (free) *free += Bytes(held.value * sharing);
  if (free && needed > *free)
    throw UserError(
        "the plan needs {} on {}, which has {} free; a smaller --microbatch or --seq, --recompute full or "
        "--precision bf16 needs less",
        text(needed), device.str(), text(*free));
}

}  // namespace optimus
