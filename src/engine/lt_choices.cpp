// See lt_choices.h.
#include "engine/lt_choices.h"

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

// The measured algorithms, by device, library and shape. A file that cannot be read or written only costs
// time.
class LtChoices::Record {
 public:
  Record(const Path& path, const std::string& device) : path_(path), device_(device) {
    if (path_.empty() || !std::filesystem::exists(path_)) return;
    try {
      all_ = read_json(path_);
      if (!all_.is_object()) all_ = Json::object();
    } catch (const UserError&) {
      all_ = Json::object();
    }
  }
  std::optional<LtAlgorithm> find(const LtShape& shape) const {
    const auto of_device = all_.find(device_);
    if (of_device == all_.end() || !of_device->is_object()) return std::nullopt;
    const auto kept = of_device->find(text(shape));
    constexpr std::size_t kWords = std::size(LtAlgorithm{}.algorithm.data);
    if (kept == of_device->end() || !kept->is_array() || kept->size() != kWords + 1) return std::nullopt;
    for (const Json& word : *kept)
      if (!word.is_number_unsigned()) return std::nullopt;
    LtAlgorithm algorithm;
    algorithm.is_turned = (*kept)[kWords].get<std::uint64_t>() != 0;
    for (std::size_t i = 0; i < kWords; ++i) algorithm.algorithm.data[i] = (*kept)[i].get<std::uint64_t>();
    return algorithm;
  }
  void add(const LtShape& shape, const LtAlgorithm& algorithm) {
    if (path_.empty()) return;
    Json words = Json::array();
    for (const std::uint64_t word : algorithm.algorithm.data) words.push_back(word);
    words.push_back(static_cast<std::uint64_t>(algorithm.is_turned));
    all_[device_][text(shape)] = std::move(words);
    RealFileSystem files;
    if (files.create_folders(path_.parent_path())) write_atomically(files, path_, all_.dump(0));
  }

 private:
  const Path path_;
  const std::string device_;
  Json all_ = Json::object();
};

LtChoices::LtChoices(at::Device device, const Path& record)
    : device_(device),
      record_(std::make_unique<Record>(record, device_and_library(device))),
      workspace_(at::empty({static_cast<std::int64_t>(kLtWorkspace)},
                           at::TensorOptions(at::kByte).device(device))) {}
LtChoices::~LtChoices() = default;

bool LtChoices::run(const LtShape& shape, const LtOperands& operands) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return false;
  const c10::cuda::CUDAGuard guard(device_);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  auto [at, is_new] = choices_.try_emplace(shape);
  Choice& choice = at->second;
  if (is_new) choice = choose(shape, operands, handle, stream);
  return choice.product != nullptr &&
         choice.product->run(handle, choice.algorithm, operands, workspace_.data_ptr(), stream);
}

LtChoices::Choice LtChoices::choose(const LtShape& shape, const LtOperands& operands, cublasLtHandle_t handle,
                                    cudaStream_t stream) {
  Choice choice{std::make_unique<LtProduct>(shape), {}};
  if (std::optional<LtAlgorithm> kept = record_->find(shape);
      kept && choice.product->accepts(handle, *kept)) {
    choice.algorithm = *kept;
    return choice;
  }
  const std::vector<LtAlgorithm> offers = choice.product->offers(handle);
  if (offers.empty()) return {};
  choice.algorithm = offers.front();
  const bool is_recorded =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  if (offers.size() == 1 || is_recorded) return choice;  // nothing can be timed during graph capture
  // If the result is accumulated in place, repeated runs would add it several times; they use separate
  // memory.
  LtOperands trial = operands;
  at::Tensor room;
  if (shape.has_addend && operands.c == operands.d) {
    room = room_for(shape);
    if (!room.defined()) return choice;
    trial.d = room.data_ptr();
    trial.c = trial.d;
  }
  choice.algorithm = fastest(*choice.product, offers, handle, trial, workspace_.data_ptr(), stream);
  record_->add(shape, choice.algorithm);
  return choice;
}
// Undefined if there is not enough memory; the library's preferred algorithm is then used.
at::Tensor LtChoices::room_for(const LtShape& shape) const {
  const at::ScalarType type = shape.is_wide ? at::kFloat : shape.is_half ? at::kHalf : at::kBFloat16;
  try {
    return at::zeros({shape.n, shape.d_stride}, at::TensorOptions(type).device(device_));
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

}  // namespace optimus
#endif
