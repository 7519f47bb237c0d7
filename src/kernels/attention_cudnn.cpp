// See attention_cudnn.h.
#include "kernels/attention_cudnn.h"

#ifdef OPTIMUS_CUDNN
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

// The frontend's own variable, through which it finds the cuDNN that PyTorch has loaded.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace optimus {
namespace {

namespace fe = cudnn_frontend;

// The tensor ids used in the graphs.
enum Name : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kSums,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient
};
using VariantPack = std::unordered_map<std::int64_t, void*>;

// A [sequences * length, heads, head_dim] tensor in cuDNN's order: [sequences, heads, length, head_dim].
struct Layout4 {
  std::vector<std::int64_t> sizes, strides;
};
Layout4 layout_of(const AttentionShape& shape, const at::Tensor& tensor) {
  return {{shape.sequences, tensor.size(1), shape.length, shape.head_dim},
          {shape.length * tensor.stride(0), tensor.stride(1), tensor.stride(0), 1}};
}
// logsumexp, [sequences, heads, length].
Layout4 sums_layout(const AttentionShape& shape) {
  return {{shape.sequences, shape.heads, shape.length, 1}, {shape.heads * shape.length, shape.length, 1, 1}};
}

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void describe(const GraphTensor& tensor, Name name, const Layout4& layout) {
  tensor->set_output(true).set_uid(name).set_dim(layout.sizes).set_stride(layout.strides);
}

// The kernel for given shapes and strides: the graph, and the index of the selected execution plan.
struct SelectedKernel {
  std::shared_ptr<fe::graph::Graph> graph;  // null if cuDNN does not support it
  std::int64_t plan = 0, workspace_bytes = 0;
};

class Builder {
 public:
  Builder(const AttentionShape& shape, at::ScalarType type)
      : shape_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(type == at::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  GraphTensor input(Name name, const Layout4& layout) {
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(name).set_dim(layout.sizes).set_stride(layout.strides));
  }
  void add_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out) {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(shape_.is_causal)
                       .set_attn_scale(static_cast<float>(shape_.scale));
    auto [result, sums] = graph_->sdpa(input(kQuery, layout_of(shape_, q)), input(kKey, layout_of(shape_, k)),
                                       input(kValue, layout_of(shape_, v)), options);
    describe(result, kOut, layout_of(shape_, out));
    describe(sums, kSums, sums_layout(shape_));
    sums->set_data_type(fe::DataType_t::FLOAT);
  }
  void add_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& out, const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention backward")
                       .set_causal_mask(shape_.is_causal)
                       .set_attn_scale(static_cast<float>(shape_.scale));
    const GraphTensor sums = input(kSums, sums_layout(shape_));
    sums->set_data_type(fe::DataType_t::FLOAT);
    auto [of_query, of_key, of_value] =
        graph_->sdpa_backward(input(kQuery, layout_of(shape_, q)), input(kKey, layout_of(shape_, k)),
                              input(kValue, layout_of(shape_, v)), input(kOut, layout_of(shape_, out)),
                              input(kOutGradient, layout_of(shape_, dout)), sums, options);
    describe(of_query, kQueryGradient, layout_of(shape_, dq));
    describe(of_key, kKeyGradient, layout_of(shape_, dk));
    describe(of_value, kValueGradient, layout_of(shape_, dv));
  }
  // Returns null if cuDNN has no kernel for the graph.
  std::shared_ptr<fe::graph::Graph> build(cudnnHandle_t handle) try {
    const bool is_built = graph_->validate().is_good() && graph_->build_operation_graph(handle).is_good() &&
                          graph_->create_execution_plans({fe::HeurMode_t::A}).is_good() &&
                          graph_->check_support().is_good() &&
                          graph_->build_plans(fe::BuildPlanPolicy_t::ALL).is_good();
    return is_built ? graph_ : nullptr;
  } catch (const std::runtime_error&) {  // the frontend did not find a library
    return nullptr;
  }

 private:
  const AttentionShape& shape_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

bool execute(const SelectedKernel& kernel, cudnnHandle_t handle, VariantPack& variant_pack) {
  const at::DataPtr workspace = c10::cuda::CUDACachingAllocator::get()->allocate(
      static_cast<std::size_t>(std::max<std::int64_t>(1, kernel.workspace_bytes)));
  return kernel.graph->execute_plan_at_index(handle, variant_pack, workspace.get(), kernel.plan).is_good();
}

// Uses cuDNN's first plan, which was the fastest by far for all tested shapes (docs/results/performance.md).
// It is not selected by measurement, because then two runs could round differently.
SelectedKernel first_working_plan(Builder& builder, cudnnHandle_t handle, VariantPack& variant_pack) {
  const std::shared_ptr<fe::graph::Graph> graph = builder.build(handle);
  for (std::int64_t plan = 0; graph != nullptr && plan < graph->get_execution_plan_count(); ++plan) {
    SelectedKernel kernel{graph, plan, 0};
    if (graph->get_workspace_size_plan_at_index(plan, kernel.workspace_bytes).is_good() &&
        execute(kernel, handle, variant_pack))
      return kernel;
  }
  return {};
}

}  // namespace

struct CudnnAttention::State {
  std::map<std::vector<std::int64_t>, SelectedKernel> selected_kernels;

  static std::vector<std::int64_t> key(const AttentionShape& shape,
                                       std::initializer_list<at::Tensor> tensors) {
    std::vector<std::int64_t> result = {shape.sequences, shape.length, shape.head_dim, shape.is_causal};
    for (const at::Tensor& tensor : tensors)
      result.insert(result.end(), {static_cast<std::int64_t>(tensor.scalar_type()), tensor.device().index(),
                                   tensor.size(1), tensor.stride(0), tensor.stride(1)});
    return result;
  }

  bool forward(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& out, const at::Tensor& logsumexp) {
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    VariantPack variant_pack = {{kQuery, q.data_ptr()},
                                {kKey, k.data_ptr()},
                                {kValue, v.data_ptr()},
                                {kOut, out.data_ptr()},
                                {kSums, logsumexp.data_ptr()}};
    auto [at, is_new] = selected_kernels.try_emplace(key(shape, {q, k, v, out}));
    if (is_new) {
      Builder builder(shape, q.scalar_type());
      builder.add_forward(q, k, v, out);
      at->second = first_working_plan(builder, handle, variant_pack);
    }
    return at->second.graph != nullptr && execute(at->second, handle, variant_pack);
  }

  bool backward(const AttentionShape& shape, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& dq,
                const at::Tensor& dk, const at::Tensor& dv) {
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    VariantPack variant_pack = {
        {kQuery, q.data_ptr()},          {kKey, k.data_ptr()},          {kValue, v.data_ptr()},
        {kOut, out.data_ptr()},          {kSums, logsumexp.data_ptr()}, {kOutGradient, dout.data_ptr()},
        {kQueryGradient, dq.data_ptr()}, {kKeyGradient, dk.data_ptr()}, {kValueGradient, dv.data_ptr()}};
    auto [at, is_new] = selected_kernels.try_emplace(key(shape, {q, k, v, out, dout, dq, dk, dv}));
    if (is_new) {
      Builder builder(shape, q.scalar_type());
      builder.add_backward(dout, q, k, v, out, dq, dk, dv);
      at->second = first_working_plan(builder, handle, variant_pack);
    }
    return at->second.graph != nullptr && execute(at->second, handle, variant_pack);
  }
};

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {
  static std::once_flag once;  // ranks may be threads
  std::call_once(once, [] { fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL); });
}
CudnnAttention::~CudnnAttention() = default;
bool CudnnAttention::is_built() { return true; }

bool CudnnAttention::forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, at::Tensor& out, at::Tensor& logsumexp) {
  if (fe::cudnn_dlhandle == nullptr || !logsumexp.is_contiguous()) return false;
  const c10::cuda::CUDAGuard guard(q.device());
  check_attention(task.shape, task.dropout);
  return state_->forward(task.shape, q, k, v, out, logsumexp);
}

bool CudnnAttention::backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                              const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv) {
  // cuDNN reads its operands while it writes. Callers pass either the same tensors or tensors that do not
  // overlap.
  const bool is_in_place =
      dq.data_ptr() == q.data_ptr() || dk.data_ptr() == k.data_ptr() || dv.data_ptr() == v.data_ptr();
  if (fe::cudnn_dlhandle == nullptr || is_in_place || !logsumexp.is_contiguous()) return false;
  const c10::cuda::CUDAGuard guard(q.device());
  check_attention(task.shape, task.dropout);
  return state_->backward(task.shape, dout, q, k, v, out, logsumexp, dq, dk, dv);
}

}  // namespace optimus

#else

namespace optimus {

struct CudnnAttention::State {};
CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() = default;
bool CudnnAttention::is_built() { return false; }
bool CudnnAttention::forward(const AttentionTask&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             at::Tensor&, at::Tensor&) {
  return false;
}
bool CudnnAttention::backward(const AttentionTask&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&,
                              at::Tensor&, at::Tensor&) {
  return false;
}

}  // namespace optimus
#endif
