// See software.h.
#include "cost/software.h"

namespace optimus {
namespace {

constexpr auto kOverlapped = StageMessaging::beside;
constexpr auto kUnfused = AttentionKernel::unfused;
constexpr auto kFirst = AttentionKernel::first;
constexpr auto kPortable = AttentionKernel::portable;
constexpr auto kNone = RecomputeMode::none;
constexpr auto kSelective = RecomputeMode::selective;
constexpr auto kFull = RecomputeMode::full;

// clang-format off
constexpr Software kSoftware[] = {
  // In side-by-side measurements, the engine's operations between GEMMs are as fast as compiled code.
  {.name = "optimus", .runs_programs = true, .launches_from_python = false, .kernels = KernelStyle::compiled,
   .attention = kPortable, .messages = kOverlapped, .has_chunked_loss = true,
   .selective = SelectiveMeaning::pointwise_operations},
  {.name = "megatron-2021", .attention = kUnfused, .overlaps_reduce = false, .overlaps_gather = false,
   .default_recompute = kFull},
  {.name = "megatron-deepspeed-2022", .attention = kUnfused, .overlaps_reduce = false,
   .overlaps_gather = false, .gradient_bytes = 2, .default_recompute = kFull, .copied_bytes = 1},
  {.name = "megatron-2023", .attention = kUnfused, .default_zero = 1, .default_recompute = kSelective,
   .default_sequence_parallel = true},
  {.name = "megatron-core-2024", .overlaps_tensor = true, .messages = kOverlapped, .default_zero = 1,
   .default_interleaving = true, .default_sequence_parallel = true},
  {.name = "megatron-core-2025", .overlaps_tensor = true, .messages = kOverlapped, .default_zero = 1,
   .default_interleaving = true, .default_sequence_parallel = true},
  {.name = "megatron-core-no-overlap", .overlaps_reduce = false, .overlaps_gather = false, .default_zero = 1,
   .default_sequence_parallel = true},
  {.name = "fsdp1-flash", .kernels = KernelStyle::eager, .attention = kFirst, .default_zero = 3,
   .selective = SelectiveMeaning::every_other_gemm},
  {.name = "fsdp2-eager", .kernels = KernelStyle::eager, .attention = kPortable, .default_zero = 3,
   .default_sequence_parallel = true, .selective = SelectiveMeaning::every_other_gemm},
  {.name = "fsdp2-compile", .kernels = KernelStyle::compiled, .attention = kPortable, .default_zero = 3,
   .default_sequence_parallel = true, .selective = SelectiveMeaning::every_other_gemm,
   .gathers_in_fp8 = true},
  {.name = "fsdp2-compile-asynctp", .kernels = KernelStyle::compiled, .attention = kPortable,
   .overlaps_tensor = true, .default_zero = 3, .default_sequence_parallel = true,
   .selective = SelectiveMeaning::every_other_gemm, .gathers_in_fp8 = true},
  {.name = "eager-flash-bf16grad", .kernels = KernelStyle::eager, .attention = kPortable,
   .broadcasts_shards = true, .gradient_bytes = 2, .default_zero = 1, .default_recompute = kNone},
  {.name = "eager-flash-fp32grad", .attention = kPortable, .overlaps_gather = false},
};
// clang-format on

}  // namespace

std::span<const Software> all_software() { return kSoftware; }
const Software& optimus_software() { return kSoftware[0]; }

const Software* find_software(std::string_view name) {
  for (const Software& software : kSoftware)
    if (software.name == name) return &software;
  return nullptr;
}

}  // namespace optimus
