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

// A variable of the cuDNN frontend. Through it, the frontend finds the cuDNN that PyTorch has loaded.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace optimus {
namespace {

namespace fe = cudnn_frontend;

// The tensor ids used in the graphs.
enum TensorId : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kSums,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kMask,
  kScale,
  kInverse
};
using VariantPack = std::unordered_map<std::int64_t, void*>;

// Describes a [sequences * length, heads, head_dim] tensor in cuDNN's order: [sequences, heads, length,
// head_dim].
struct Layout4 {
  std::vector<std::int64_t> sizes, strides;
};
Layout4 layout_of(const AttentionShape& shape, const at::Tensor& tensor) {
  return {{shape.sequences, tensor.size(1), shape.length, shape.head_dim},
          {shape.length * tensor.stride(0), tensor.stride(1), tensor.stride(0), 1}};
}
// Returns the layout of logsumexp, [sequences, heads, length].
Layout4 sums_layout(const AttentionShape& shape) {
  return {{shape.sequences, shape.heads, shape.length, 1}, {shape.heads * shape.length, shape.length, 1, 1}};
}

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void describe(const GraphTensor& tensor, TensorId name, const Layout4& layout) {
  tensor->set_output(true).set_uid(name).set_dim(layout.sizes).set_stride(layout.strides);
}

// The kernel for given shapes and strides, as a graph and the index of the selected execution plan.
struct SelectedKernel {
  std::shared_ptr<fe::graph::Graph> graph;  // null if cuDNN does not support it
  std::int64_t plan = 0, workspace_bytes = 0;
};

class GraphBuilder {
 public:
  GraphBuilder(const AttentionShape& shape, at::ScalarType type, bool has_dropout)
      : shape_(shape), has_dropout_(has_dropout), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(type == at::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  GraphTensor input(TensorId name, const Layout4& layout) {
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(name).set_dim(layout.sizes).set_stride(layout.strides));
  }
  GraphTensor mask() {
    const std::int64_t length = shape_.length, matrix_size = length * length;
    return input(kMask, {{shape_.sequences, shape_.heads, length, length},
                         {shape_.heads * matrix_size, matrix_size, length, 1}});
  }
  GraphTensor scalar(TensorId name) {  // read by the host when the graph is executed
    const GraphTensor tensor = input(name, {{1, 1, 1, 1}, {1, 1, 1, 1}});
    tensor->set_is_pass_by_value(true).set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }
  void add_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out) {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(shape_.is_causal)
                       .set_attn_scale(static_cast<float>(shape_.scale));
    // Both arguments are factors. cuDNN recognizes only the pattern that applies the mask first, which is the
    // second argument here.
    if (has_dropout_) options.set_dropout(scalar(kScale), mask());
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
    if (has_dropout_) options.set_dropout(mask(), scalar(kScale), scalar(kInverse));
    const GraphTensor sums = input(kSums, sums_layout(shape_));
    sums->set_data_type(fe::DataType_t::FLOAT);
    auto [query_gradient, key_gradient, value_gradient] =
        graph_->sdpa_backward(input(kQuery, layout_of(shape_, q)), input(kKey, layout_of(shape_, k)),
                              input(kValue, layout_of(shape_, v)), input(kOut, layout_of(shape_, out)),
                              input(kOutGradient, layout_of(shape_, dout)), sums, options);
    describe(query_gradient, kQueryGradient, layout_of(shape_, dq));
    describe(key_gradient, kKeyGradient, layout_of(shape_, dk));
    describe(value_gradient, kValueGradient, layout_of(shape_, dv));
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
  const bool has_dropout_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

// The part of a task that one call covers. Without dropout this is the whole task; with dropout it is as much
// as the size limit of the mask allows.
struct Part {
  AttentionShape shape{};  // shape of the part
  Span sequences{}, groups{};
  at::Tensor mask{};  // 1 or 0 for each score; undefined without dropout
  double rate = 0;
  // Factor of retained scores, and the inverse factor that is passed to the backward pass (see scaled_out).
  float scale = 1, inverse = 1;

  bool has_dropout() const { return rate > 0; }
  Span heads() const {
    const std::int64_t group = shape.heads / shape.kv_heads;
    return {groups.begin * group, groups.end * group};
  }
  void add_dropout(VariantPack& variant_pack, bool is_backward) const {
    if (!has_dropout()) return;
    variant_pack[kMask] = mask.data_ptr(), variant_pack[kScale] = const_cast<float*>(&scale);
    if (is_backward) variant_pack[kInverse] = const_cast<float*>(&inverse);
  }
  // Returns the output that is passed to the backward pass. cuDNN should multiply the product of output and
  // dout by 1 - rate, but version 9.19 ignores the argument for this factor and uses 1. We therefore pass 1
  // and scale the output instead.
  at::Tensor scaled_out(const at::Tensor& out) const { return has_dropout() ? out * (1 - rate) : out; }
  void fill_mask(const AttentionTask& task, const at::Tensor& like) {
    if (!has_dropout()) return;
    mask = at::empty({shape.sequences, shape.heads, shape.length, shape.length}, like.options());
    fill_dropout_mask(task.dropout, shape.is_causal, sequences, heads(), mask);
  }
  // Return views of the part's rows and heads in a tensor of queries or keys.
  at::Tensor queries(const at::Tensor& rows) const {
    return rows_of_part(rows).narrow(1, heads().begin, shape.heads);
  }
  at::Tensor keys(const at::Tensor& rows) const {
    return rows_of_part(rows).narrow(1, groups.begin, shape.kv_heads);
  }
  at::Tensor sums(const at::Tensor& logsumexp) const {
    return logsumexp.narrow(0, sequences.begin, shape.sequences).narrow(1, heads().begin, shape.heads);
  }

 private:
  at::Tensor rows_of_part(const at::Tensor& rows) const {
    return rows.narrow(0, sequences.begin * shape.length, shape.sequences * shape.length);
  }
};

std::vector<Part> parts_of(const AttentionTask& task) {
  constexpr std::int64_t kMaxMaskBytes = 256 << 20;
  const AttentionShape& whole = task.shape;
  check_attention(whole, task.dropout);
  const std::int64_t group = whole.heads / whole.kv_heads;
  // A part consists of whole sequences if the mask of one sequence fits, otherwise of some head groups of one
  // sequence.
  const bool has_dropout = task.dropout.rate > 0;
  const std::int64_t max_groups =
      std::max<std::int64_t>(1, kMaxMaskBytes / (2 * group * whole.length * whole.length));
  const std::int64_t groups = has_dropout ? std::min(max_groups, whole.kv_heads) : whole.kv_heads;
  const std::int64_t sequences =
      has_dropout ? std::max<std::int64_t>(1, max_groups / whole.kv_heads) : whole.sequences;
  std::vector<Part> parts;
  for (std::int64_t s = 0; s < whole.sequences; s += sequences)
    for (std::int64_t g = 0; g < whole.kv_heads; g += groups) {
      Part part{.shape = whole,
                .sequences = {s, std::min(s + sequences, whole.sequences)},
                .groups = {g, std::min(g + groups, whole.kv_heads)},
                .rate = task.dropout.rate,
                .scale = static_cast<float>(1 / (1 - task.dropout.rate))};
      part.shape.sequences = part.sequences.size(), part.shape.kv_heads = part.groups.size();
      part.shape.heads = group * part.shape.kv_heads;
      parts.push_back(part);
    }
  return parts;
}

bool execute(const SelectedKernel& kernel, cudnnHandle_t handle, VariantPack& variant_pack) {
  const at::DataPtr workspace = c10::cuda::CUDACachingAllocator::get()->allocate(
      static_cast<std::size_t>(std::max<std::int64_t>(1, kernel.workspace_bytes)));
  return kernel.graph->execute_plan_at_index(handle, variant_pack, workspace.get(), kernel.plan).is_good();
}

// Uses the first plan that works, because cuDNN's first plan was by far the fastest for all tested shapes
// (docs/results/performance.md). Plans are not timed, because two runs could then select different plans and
// round differently.
SelectedKernel first_working_plan(GraphBuilder& builder, cudnnHandle_t handle, VariantPack& variant_pack) {
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

  static std::vector<std::int64_t> key(const AttentionShape& shape, bool has_dropout,
                                       std::initializer_list<at::Tensor> tensors) {
    std::vector<std::int64_t> result = {shape.sequences, shape.length, shape.head_dim, shape.is_causal,
                                        has_dropout};
    for (const at::Tensor& tensor : tensors)
      result.insert(result.end(), {static_cast<std::int64_t>(tensor.scalar_type()), tensor.device().index(),
                                   tensor.size(1), tensor.stride(0), tensor.stride(1)});
    return result;
  }

  bool forward(const Part& part, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& out, const at::Tensor& logsumexp) {
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    VariantPack variant_pack = {{kQuery, q.data_ptr()},
                                {kKey, k.data_ptr()},
                                {kValue, v.data_ptr()},
                                {kOut, out.data_ptr()},
                                {kSums, logsumexp.data_ptr()}};
    part.add_dropout(variant_pack, false);
    auto [kernel, is_new] = selected_kernels.try_emplace(key(part.shape, part.has_dropout(), {q, k, v, out}));
    if (is_new) {
      GraphBuilder builder(part.shape, q.scalar_type(), part.has_dropout());
      builder.add_forward(q, k, v, out);
      kernel->second = first_working_plan(builder, handle, variant_pack);
    }
    return kernel->second.graph != nullptr && execute(kernel->second, handle, variant_pack);
  }

  bool backward(const Part& part, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                const at::Tensor& v, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& dq,
                const at::Tensor& dk, const at::Tensor& dv) {
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    VariantPack variant_pack = {
        {kQuery, q.data_ptr()},          {kKey, k.data_ptr()},          {kValue, v.data_ptr()},
        {kOut, out.data_ptr()},          {kSums, logsumexp.data_ptr()}, {kOutGradient, dout.data_ptr()},
        {kQueryGradient, dq.data_ptr()}, {kKeyGradient, dk.data_ptr()}, {kValueGradient, dv.data_ptr()}};
    part.add_dropout(variant_pack, true);
    auto [kernel, is_new] =
        selected_kernels.try_emplace(key(part.shape, part.has_dropout(), {q, k, v, out, dout, dq, dk, dv}));
    if (is_new) {
      GraphBuilder builder(part.shape, q.scalar_type(), part.has_dropout());
      builder.add_backward(dout, q, k, v, out, dq, dk, dv);
      kernel->second = first_working_plan(builder, handle, variant_pack);
    }
    return kernel->second.graph != nullptr && execute(kernel->second, handle, variant_pack);
  }
};

CudnnAttention::CudnnAttention() : state_(std::make_unique<State>()) {
  static std::once_flag load_once;  // ranks may be threads
  std::call_once(load_once, [] { fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL); });
}
CudnnAttention::~CudnnAttention() = default;
bool CudnnAttention::is_built() { return true; }

bool CudnnAttention::forward(const AttentionTask& task, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, at::Tensor& out, at::Tensor& logsumexp) {
  if (fe::cudnn_dlhandle == nullptr || !logsumexp.is_contiguous()) return false;
  const c10::cuda::CUDAGuard guard(q.device());
  const std::vector<Part> parts = parts_of(task);
  return std::all_of(parts.begin(), parts.end(), [&](Part part) {
    part.fill_mask(task, q);
    return state_->forward(part, part.queries(q), part.keys(k), part.keys(v), part.queries(out),
                           part.sums(logsumexp));
  });
}

bool CudnnAttention::backward(const AttentionTask& task, const at::Tensor& dout, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                              const at::Tensor& logsumexp, at::Tensor& dq, at::Tensor& dk, at::Tensor& dv) {
  // cuDNN reads its operands while it writes its results, so it cannot run in place. Callers pass either the
  // same tensors or tensors that do not overlap.
  const bool is_in_place =
      dq.data_ptr() == q.data_ptr() || dk.data_ptr() == k.data_ptr() || dv.data_ptr() == v.data_ptr();
  if (fe::cudnn_dlhandle == nullptr || is_in_place || !logsumexp.is_contiguous()) return false;
  const c10::cuda::CUDAGuard guard(q.device());
  const std::vector<Part> parts = parts_of(task);
  return std::all_of(parts.begin(), parts.end(), [&](Part part) {
    part.fill_mask(task, q);
    return state_->backward(part, part.queries(dout), part.queries(q), part.keys(k), part.keys(v),
                            part.scaled_out(part.queries(out)), part.sums(logsumexp), part.queries(dq),
                            part.keys(dk), part.keys(dv));
  });
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
