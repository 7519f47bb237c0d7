// See lt_autotuner.h.
#include "engine/lt_autotuner.h"

#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace optimus {
namespace {

std::string device_and_library(at::Device device) {
  return fmt::format("{}, cuBLASLt {}", at::cuda::getDeviceProperties(device.index())->name,
                     cublasLtGetVersion());
}

}  // namespace

// Cache file for the fastest algorithms, keyed by device and library version, then by shape. If it cannot be
// read or written, algorithms are timed again in each run.
class LtAutotuner::AlgorithmFile {
 public:
  AlgorithmFile(const Path& path, const std::string& device) : path_(path), device_(device) {
    if (path_.empty() || !std::filesystem::exists(path_)) return;
    try {
      entries_ = read_json(path_);
      if (!entries_.is_object()) entries_ = Json::object();
    } catch (const ReportedError&) {
      entries_ = Json::object();
    }
  }
  std::optional<LtAlgorithm> find(const LtShape& shape) const {
    const auto device_entry = entries_.find(device_);
    if (device_entry == entries_.end() || !device_entry->is_object()) return std::nullopt;
    const auto cached = device_entry->find(text(shape));
    constexpr std::size_t kWords = std::size(LtAlgorithm{}.algorithm.data);
    if (cached == device_entry->end() || !cached->is_array() || cached->size() != kWords + 1)
      return std::nullopt;
    for (const Json& word : *cached)
      if (!word.is_number_unsigned()) return std::nullopt;
    LtAlgorithm algorithm;
    algorithm.is_transposed = (*cached)[kWords].get<std::uint64_t>() != 0;
    for (std::size_t i = 0; i < kWords; ++i) algorithm.algorithm.data[i] = (*cached)[i].get<std::uint64_t>();
    return algorithm;
  }
  void add(const LtShape& shape, const LtAlgorithm& algorithm) {
    if (path_.empty()) return;
    Json words = Json::array();
    for (const std::uint64_t word : algorithm.algorithm.data) words.push_back(word);
    words.push_back(static_cast<std::uint64_t>(algorithm.is_transposed));
    entries_[device_][text(shape)] = std::move(words);
    RealFileSystem files;
    if (files.create_folders(path_.parent_path())) write_atomically(files, path_, entries_.dump(0));
  }

 private:
  const Path path_;
  const std::string device_;
  Json entries_ = Json::object();
};

LtAutotuner::LtAutotuner(at::Device device, const Path& algorithm_path)
    : device_(device),
      algorithm_file_(std::make_unique<AlgorithmFile>(algorithm_path, device_and_library(device))),
      workspace_(at::empty({static_cast<std::int64_t>(kLtWorkspace)},
                           at::TensorOptions(at::kByte).device(device))) {}
LtAutotuner::~LtAutotuner() = default;

bool LtAutotuner::run(const LtShape& shape, const LtOperands& operands) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return false;
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  auto [at, is_new] = tuned_gemms_.try_emplace(shape);
  TunedGemm& tuned = at->second;
  if (is_new) tuned = choose(shape, operands, handle, stream);
  return tuned.gemm != nullptr &&
         tuned.gemm->run(handle, tuned.algorithm, operands, workspace_.data_ptr(), stream);
}

LtAutotuner::TunedGemm LtAutotuner::choose(const LtShape& shape, const LtOperands& operands,
                                           cublasLtHandle_t handle, cudaStream_t stream) {
  TunedGemm tuned{std::make_unique<LtGemm>(shape), {}};
  if (std::optional<LtAlgorithm> cached = algorithm_file_->find(shape);
      cached && tuned.gemm->accepts(handle, *cached)) {
    tuned.algorithm = *cached;
    return tuned;
  }
  const std::vector<LtAlgorithm> supported_algorithms = tuned.gemm->supported_algorithms(handle);
  if (supported_algorithms.empty()) return {};
  tuned.algorithm = supported_algorithms.front();
  const bool is_recorded =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  if (supported_algorithms.size() == 1 || is_recorded)
    return tuned;  // nothing can be timed during graph capture
  // If the result is accumulated in place, repeated runs would add it several times. The timed runs therefore
  // write to separate memory.
  LtOperands trial_operands = operands;
  at::Tensor scratch_output;
  if (shape.has_addend && operands.c == operands.d) {
    scratch_output = scratch_output_for(shape);
    if (!scratch_output.defined()) return tuned;
    trial_operands.d = scratch_output.data_ptr();
    trial_operands.c = trial_operands.d;
  }
  tuned.algorithm = select_fastest(*tuned.gemm, supported_algorithms, handle, trial_operands,
                                   workspace_.data_ptr(), stream);
  algorithm_file_->add(shape, tuned.algorithm);
  return tuned;
}
// Returns an undefined tensor if there is not enough memory. The library's preferred algorithm is then used.
at::Tensor LtAutotuner::scratch_output_for(const LtShape& shape) const {
  const at::ScalarType type = shape.is_wide ? at::kFloat : shape.is_half ? at::kHalf : at::kBFloat16;
  try {
    return at::zeros({shape.n, shape.d_stride}, at::TensorOptions(type).device(device_));
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

}  // namespace optimus
#endif
