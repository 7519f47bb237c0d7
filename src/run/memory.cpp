// See memory.h.
#include "run/memory.h"

#ifdef OPTIMUS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "schedule/program.h"

namespace optimus {

Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int device) {
  const Program program = compile(plan, model, device);
  const MemoryUse use = memory_use(program);
  return use.weights + use.gradients + use.optimizer + plan_arena(program).bytes;
}

std::optional<Bytes> free_memory(at::Device device) {
  if (device.is_cuda()) {
#ifdef OPTIMUS_CUDA
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) == cudaSuccess) return Bytes(static_cast<std::int64_t>(free));
#endif
    return std::nullopt;
  }
  const Outcome<std::string> info = read_file("/proc/meminfo", Bytes(1 << 20));
  if (!info) return std::nullopt;
  const std::size_t at = info->find("MemAvailable:");
  if (at == std::string::npos) return std::nullopt;
  const char* begin = info->data() + info->find_first_of("0123456789", at);
  std::int64_t kibibytes = 0;
  if (std::from_chars(begin, info->data() + info->size(), kibibytes).ec != std::errc()) return std::nullopt;
  return Bytes(kibibytes * 1024);
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
