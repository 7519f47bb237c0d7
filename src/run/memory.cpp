// See memory.h.
#include "run/memory.h"

#ifdef OPTIMUS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "schedule/program.h"

namespace optimus {

Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int device) {
  const Program program = compile(plan, model, device);
  const MemoryUse use = memory_use(program);
  const Arena arena = plan_arena(program);
  return use.weights + use.gradients + use.optimizer + arena.bytes + arena.outside;
}

std::optional<Bytes> free_memory(at::Device device) {
  if (device.is_cuda()) {
#ifdef OPTIMUS_CUDA
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) return Bytes(static_cast<std::int64_t>(free));
#endif
    return std::nullopt;
  }
  std::ifstream info("/proc/meminfo");
  for (std::string name, rest; info >> name; std::getline(info, rest))
    if (std::int64_t kibibytes = 0; name == "MemAvailable:" && info >> kibibytes)
      return Bytes(kibibytes * 1024);
  return std::nullopt;
}

void refuse_too_large(const Plan& plan, const ModelSpec& model, at::Device device) {
  const Bytes needed = predicted_memory(plan, model, plan.pipelines[0].stages[0].devices[0]);
  const std::optional<Bytes> free = free_memory(device);
  if (free && needed > *free)
    throw UserError(
        "the plan needs {} on {}, which has {} free; a smaller --microbatch or --seq, --recompute full or "
        "--precision bf16 needs less",
        text(needed), device.str(), text(*free));
}

}  // namespace optimus
