// A layer's products on CUDA in bf16 and fp16, by cuBLASLt: each shape's algorithm is the one that was fastest here, measured at
// its first use and kept in a file for the next run. What cuBLASLt cannot do goes to ATen's products.
//
// Matrices of ours are row-major, cuBLASLt's column-major: y = x W^T is y^T = W x^T, and the memory of y^T, column-major, is
// that of y.
#include "engine/products_cuda.h"

#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "engine/lt_product.h"

namespace optimus {
namespace {

// Rows of 16-byte units from a 16-byte address: what the library's fast kernels want.
bool is_aligned(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const std::int64_t unit = 16 / static_cast<std::int64_t>(tensor.element_size());
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0 &&
         (tensor.dim() == 1 ||
          (tensor.stride(1) == 1 && tensor.stride(0) % unit == 0 && tensor.size(1) % unit == 0));
}
template <typename... More>
bool all_aligned(const More&... tensors) {
  return (is_aligned(tensors) && ...);
}

// Algorithms that were measured, by device, library and shape. A file that cannot be read or written costs time, nothing else.
class Record {
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

std::string device_and_library(at::Device device) {
  return fmt::format("{}, cuBLASLt {}", at::cuda::getDeviceProperties(device.index())->name,
                     cublasLtGetVersion());
}

class CudaProducts final : public Products {
 public:
  CudaProducts(at::Device device, at::ScalarType element, const Path& record, std::unique_ptr<Products> plain)
      : device_(device),
        element_(element),
        plain_(std::move(plain)),
        record_(record, device_and_library(device)),
        workspace_(at::empty({static_cast<std::int64_t>(kLtWorkspace)},
                             at::TensorOptions(at::kByte).device(device))) {}

  void forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y,
               bool adds) override {
    if (!multiply(x, weight, bias, adds ? y : at::Tensor(), y)) plain_->forward(x, weight, bias, y, adds);
  }
  void forward_onto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& stream, at::Tensor& y) override {
    if (!multiply(x, weight, bias, stream, y)) plain_->forward_onto(x, weight, bias, stream, y);
  }
  // Not in place: where C is D, the library rounds the sums to 16 bits and lets the memory add them (seen with all algorithms of
  // cuBLASLt 13.1 on an H200).
  void input_gradient(const at::Tensor& dy, const at::Tensor& weight, at::Tensor& dx,
                      const at::Tensor& stream) override {
    LtShape shape = input_gradient_shape(dy, weight, dx);
    shape.has_addend = stream.defined(), shape.c_stride = stream.defined() ? stream.stride(0) : dx.stride(0);
    if (!all_aligned(dy, weight, dx, stream) ||
        !run(shape, {weight.data_ptr(), dy.data_ptr(), stream.defined() ? stream.data_ptr() : nullptr,
                     dx.data_ptr(), nullptr}))
      plain_->input_gradient(dy, weight, dx, stream);
  }
  bool input_gradient_through(Activation kind, const at::Tensor& dy, const at::Tensor& weight,
                              const at::Tensor& x, at::Tensor& dx) override {
    if (kind != Activation::gelu_tanh || !all_aligned(dy, weight, x, dx)) return false;
    LtShape shape = input_gradient_shape(dy, weight, dx);
    shape.c_stride = dx.stride(0), shape.aux_stride = x.stride(0), shape.epilogue = LtEpilogue::gelu_gradient;
    return run(shape, {weight.data_ptr(), dy.data_ptr(), nullptr, dx.data_ptr(), x.data_ptr()});
  }
  void weight_gradient(const at::Tensor& dy, const at::Tensor& x, at::Tensor& gradient, bool adds) override {
    LtShape shape = base_shape();
    shape.m = x.size(1), shape.n = dy.size(1), shape.k = x.size(0);
    shape.a_stride = x.stride(0), shape.b_stride = dy.stride(0), shape.b_is_transposed = true;
    shape.c_stride = shape.d_stride = gradient.stride(0);
    shape.has_addend = adds, shape.is_wide = true;
    if (!all_aligned(dy, x, gradient) ||
        !run(shape, {x.data_ptr(), dy.data_ptr(), gradient.data_ptr(), gradient.data_ptr(), nullptr}))
      plain_->weight_gradient(dy, x, gradient, adds);
  }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(kLtWorkspace); }

 private:
  struct Choice {
    std::unique_ptr<LtProduct> product;  // null: cuBLASLt cannot do it
    LtAlgorithm algorithm;
  };

  LtShape base_shape() const {
    LtShape shape;
    shape.is_half = element_ == at::kHalf;
    return shape;
  }
  LtShape input_gradient_shape(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& dx) const {
    LtShape shape = base_shape();
    shape.m = weight.size(1), shape.n = dy.size(0), shape.k = weight.size(0);
    shape.a_stride = weight.stride(0), shape.b_stride = dy.stride(0), shape.d_stride = dx.stride(0);
    return shape;
  }
  // y = x W^T + bias + addend; false where cuBLASLt cannot.
  bool multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const at::Tensor& addend, at::Tensor& y) {
    if (!all_aligned(x, weight, bias, addend, y)) return false;
    LtShape shape = base_shape();
    shape.m = weight.size(0), shape.n = x.size(0), shape.k = x.size(1);
    shape.a_stride = weight.stride(0), shape.a_is_transposed = true, shape.b_stride = x.stride(0);
    shape.d_stride = y.stride(0);
    shape.has_addend = addend.defined(), shape.c_stride = addend.defined() ? addend.stride(0) : y.stride(0);
    shape.epilogue = bias.defined() ? LtEpilogue::bias : LtEpilogue::none;
    return run(shape, {weight.data_ptr(), x.data_ptr(), addend.defined() ? addend.data_ptr() : nullptr,
                       y.data_ptr(), bias.defined() ? bias.data_ptr() : nullptr});
  }

  bool run(const LtShape& shape, const LtOperands& operands) {
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

  Choice choose(const LtShape& shape, const LtOperands& operands, cublasLtHandle_t handle,
                cudaStream_t stream) {
    Choice choice{std::make_unique<LtProduct>(shape), {}};
    if (std::optional<LtAlgorithm> kept = record_.find(shape);
        kept && choice.product->accepts(handle, *kept)) {
      choice.algorithm = *kept;
      return choice;
    }
    const std::vector<LtAlgorithm> offers = choice.product->offers(handle);
    if (offers.empty()) return {};
    choice.algorithm = offers.front();
    const bool is_recorded =
        c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
    if (offers.size() == 1 || is_recorded) return choice;  // nothing can be timed while a graph is recorded
    // Where the result is added to what it takes the place of, a second run would add it twice: that is tried elsewhere.
    LtOperands trial = operands;
    at::Tensor room;
    if (shape.has_addend && operands.c == operands.d) {
      room = room_for(shape);
      if (!room.defined()) return choice;
      trial.d = room.data_ptr();
      trial.c = trial.d;
    }
    choice.algorithm = fastest(*choice.product, offers, handle, trial, workspace_.data_ptr(), stream);
    record_.add(shape, choice.algorithm);
    return choice;
  }
  // Undefined where memory has no room: then the library's own choice will do.
  at::Tensor room_for(const LtShape& shape) const {
    const at::ScalarType type = shape.is_wide ? at::kFloat : element_;
    try {
      return at::zeros({shape.n, shape.d_stride}, at::TensorOptions(type).device(device_));
    } catch (const c10::OutOfMemoryError&) {
      return {};
    }
  }

  const at::Device device_;
  const at::ScalarType element_;
  const std::unique_ptr<Products> plain_;
  Record record_;
  const at::Tensor workspace_;
  std::map<LtShape, Choice> choices_;
};

}  // namespace

std::unique_ptr<Products> make_cuda_products(at::Device device, at::ScalarType element, const Path& record,
                                             std::unique_ptr<Products> plain) {
  return std::make_unique<CudaProducts>(device, element, record, std::move(plain));
}

}  // namespace optimus
#endif
