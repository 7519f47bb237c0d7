// Implements memory.h.
#include "switching/memory.h"

#ifdef OPTIMUS_CUDA
#include <cuda_runtime_api.h>
#endif

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "kernels/attention_cudnn.h"
#include "plan/fp8.h"
#include "schedule/program.h"

namespace optimus {

namespace {

constexpr Bytes kMoveHeadroom{std::int64_t{256} << 20};  // for staging copies during a move

// Memory that libraries allocate on CUDA. Fused attention accumulates the gradients of queries in fp32. If
// heads share keys and values, it also stores the gradients of keys and values for every query head before it
// sums them. PyTorch's attention, which is used if CudnnAttention is not built, returns all gradients in
// separate tensors, which are then copied. GEMMs need a workspace. predicted_memory() was compared with the
// allocator's peak memory on an H200 (docs/results/performance.md). With PyTorch's attention it is within 0.5
// % in six runs (5 to 42 GiB) and within 1 % in eleven others (2 to 48 GiB). With CudnnAttention it is within
// 0.5 % in five runs (22 to 68 GiB).
Bytes library_memory(const Plan& plan, const ModelSpec& model, at::Device device) {
  const bool is_16_bit = bytes_of(plan.precision) == 2;
  if (!device.is_cuda() || !is_16_bit || model.heads == 0) return Bytes(0);
  const std::vector<int>& microbatches = plan.pipelines[0].microbatches;
  const std::int64_t tokens =
      *std::max_element(microbatches.begin(), microbatches.end()) * plan.sequence_length;
  const std::int64_t element = bytes_of(plan.precision);
  std::int64_t bytes_per_token = model.query_width() * 4;
  if (CudnnAttention::is_built())
    bytes_per_token += model.kv_heads < model.heads ? 2 * model.query_width() * element : 0;
  else
    bytes_per_token += (model.query_width() + 2 * model.kv_width()) * element;
  return Bytes(tokens * bytes_per_token + (std::int64_t{64} << 20));
}

// On CUDA, fp8 GEMMs keep the matrices of their layers in both orientations, with one byte per element in
// each. predicted_memory() is then within 1 % of the allocator's peak memory in five runs on an H200 (22 to
// 68 GiB; docs/results/performance.md).
Bytes fp8_copies(const Plan& plan, const ModelSpec& model, int rank, at::Device device) {
  if (!device.is_cuda()) return Bytes(0);
  const PlanLocation location = location_of(plan, rank);
  const Stage& stage = plan.pipelines[static_cast<std::size_t>(location.pipeline)]
                           .stages[static_cast<std::size_t>(location.stage)];
  const std::int64_t matrices =
      model.hidden * (2 * model.query_width() + 2 * model.kv_width() + (model.is_gated ? 3 : 2) * model.ffn);
  Bytes total(0);
  for (const int block : fp8_blocks(plan))
    for (const Chunk& chunk : stage.chunks)
      if (block >= chunk.first_block() && block < chunk.end_block())
        total += Bytes(2 * matrices / strategy_of(stage, block).tp);
  return total;
}

}  // namespace

Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int rank, at::Device device) {
  const Program program = compile(plan, model, rank);
  const MemoryUse use = memory_use(program);
  const Arena arena = plan_arena(program);
  return use.weights + use.gradients + use.optimizer + arena.bytes + arena.autograd_peak +
         library_memory(plan, model, device) + fp8_copies(plan, model, rank, device);
}

namespace {

std::optional<Bytes> meminfo_value(const std::string& key) {
  std::ifstream info("/proc/meminfo");
  for (std::string name, line_end; info >> name; std::getline(info, line_end))
    if (std::int64_t kibibytes = 0; name == key && info >> kibibytes) return Bytes(kibibytes * 1024);
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
  if (!device.is_cuda()) return meminfo_value("MemAvailable:");
  const std::optional<CudaMemory> memory = cuda_memory();
  return memory ? std::optional(Bytes(static_cast<std::int64_t>(memory->free))) : std::nullopt;
}

std::optional<ResidentMemory> resident_memory(at::Device device) {
  if (device.is_cuda()) {
    const std::optional<CudaMemory> memory = cuda_memory();
    if (!memory) return std::nullopt;
    const auto total = static_cast<std::int64_t>(memory->total);
    return ResidentMemory{Bytes(total - static_cast<std::int64_t>(memory->free)), Bytes(total)};
  }
  const std::optional<Bytes> free = free_memory(device);
  std::ifstream file("/proc/self/statm");  // in pages: virtual size, then resident size
  std::int64_t virtual_size = 0, resident_size = 0;
  if (!free || !(file >> virtual_size >> resident_size)) return std::nullopt;
  resident_size *= sysconf(_SC_PAGESIZE);
  return ResidentMemory{Bytes(resident_size), Bytes(resident_size) + *free};
}

Bytes total_memory(at::Device device) {
  if (!device.is_cuda()) return meminfo_value("MemTotal:").value_or(Bytes(0));
  return Bytes(static_cast<std::int64_t>(cuda_memory().value_or(CudaMemory{}).total));
}

std::optional<std::string> bus_id([[maybe_unused]] at::Device device) {
#ifdef OPTIMUS_CUDA
  std::array<char, 32> text{};
  if (device.is_cuda() && cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()),
                                                std::max<int>(0, device.index())) == cudaSuccess)
    return text.data();
#endif
  return std::nullopt;
}

Bytes spare_memory(at::Device device, int num_ranks) {
  const std::int64_t num_sharing = device.is_cuda() ? 1 : num_ranks;
  return Bytes(free_memory(device).value_or(Bytes(0)).value / (2 * num_sharing));
}

std::optional<std::string> memory_shortage(const Plan& plan, const ModelSpec& model, at::Device device,
                                           Bytes replaced) {
  // Workers on CPUs share the memory of their machine.
  const int num_sharing = device.is_cuda() ? 1 : num_devices(plan);
  const Bytes needed = Bytes(
      predicted_memory(plan, model, plan.pipelines[0].stages[0].devices[0], device).value * num_sharing);
  std::optional<Bytes> free = free_memory(device);
  if (free) *free += Bytes(replaced.value * num_sharing);
  if (!free || needed <= *free) return std::nullopt;
  return fmt::format(
      "the plan needs {} on {}, which has {} free; reduce --microbatch or --seq, or use --recompute full "
      "or --precision bf16",
      text(needed), device.str(), text(*free));
}

std::optional<std::string> memory_shortage(const PlanSwitch& next, const ModelSpec& model, int rank,
                                           at::Device device) {
  Bytes old_bytes(0), max_plan_bytes(0);
  for (const Plan* plan : {&next.change().from, &next.plan()})
    if (has_device(*plan, rank))
      max_plan_bytes = std::max(max_plan_bytes, predicted_memory(*plan, model, rank, device));
  if (has_device(next.change().from, rank))
    old_bytes = predicted_memory(next.change().from, model, rank, device);
  if (std::optional<std::string> reason = memory_shortage(next.plan(), model, device, old_bytes))
    return reason;
  if (next.peak_bytes() <= max_plan_bytes + kMoveHeadroom) return std::nullopt;
  return fmt::format(
      "moving the state would need {} on this device, which is more than the {} that the plans need",
      text(next.peak_bytes()), text(max_plan_bytes));
}

void check_fits(const Plan& plan, const ModelSpec& model, at::Device device, Bytes replaced) {
  if (const auto reason = memory_shortage(plan, model, device, replaced)) throw UserError("{}", *reason);
}

}  // namespace optimus
