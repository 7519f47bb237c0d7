// See lt_gemm.h.
#include "engine/lt_gemm.h"

#ifdef OPTIMUS_CUDA
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

void check(cublasStatus_t status, const char* action) {
  ensure(status == CUBLAS_STATUS_SUCCESS, "{}: cuBLASLt returned status {}", action,
         static_cast<int>(status));
}

// Describes a matrix in memory. `stride` is the distance between columns, or between rows if the matrix is
// row-major.
cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                              std::int64_t stride, bool is_row_major) {
  cublasLtMatrixLayout_t result = nullptr;
  check(cublasLtMatrixLayoutCreate(&result, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride),
        "creating a matrix layout");
  if (is_row_major) {
    const cublasLtOrder_t order = CUBLASLT_ORDER_ROW;
    check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
          "setting the matrix order");
  }
  return result;
}

cublasLtEpilogue_t epilogue_of(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case LtEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// With fp8 operands, tensor cores accumulate with about 13 bits, so smaller contributions are truncated
// towards zero. For most GEMMs, this error is below the rounding error of the operands. It matters for weight
// gradients, which are sums over all tokens of a micro-batch whose terms mostly cancel each other. With fast
// accumulation, GPT-2 124M learned 1.3 % less (docs/results/fp8.md).
bool uses_exact_accumulation(const LtShape& shape) { return shape.b_is_gradient && shape.is_wide; }

class StreamTimer {
 public:
  explicit StreamTimer(cudaStream_t stream) : stream_(stream) {
    C10_CUDA_CHECK(cudaEventCreate(&begin_));
    C10_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~StreamTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  void begin() { C10_CUDA_CHECK(cudaEventRecord(begin_, stream_)); }
  float milliseconds() {
    C10_CUDA_CHECK(cudaEventRecord(end_, stream_));
    C10_CUDA_CHECK(cudaEventSynchronize(end_));
    float total = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&total, begin_, end_));
    return total;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::string text(const LtShape& shape) {
  return fmt::format("{}x{}x{}-{}-{}-{}-{}-{}-{}{}{}{}{}{}{}", shape.m, shape.n, shape.k, shape.a_stride,
                     shape.b_stride, shape.c_stride, shape.d_stride, shape.aux_stride,
                     shape.a_is_transposed ? 't' : 'n', shape.b_is_transposed ? 't' : 'n',
                     shape.has_addend ? 'c' : '0', shape.is_half ? 'h' : 'b', shape.is_wide ? 'w' : 's',
                     static_cast<int>(shape.epilogue),
                     !shape.uses_fp8                  ? ""
                     : uses_exact_accumulation(shape) ? "-e4m3-e5m2-exact"
                     : shape.b_is_gradient            ? "-e4m3-e5m2"
                                                      : "-e4m3-e4m3");
}

struct LtGemm::Description {
  cublasLtMatmulDesc_t gemm = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;

  Description(const LtShape& of, bool is_transposed) {
    const cudaDataType_t half_type = of.is_half ? CUDA_R_16F : CUDA_R_16BF;
    const cudaDataType_t output_type = of.is_wide ? CUDA_R_32F : half_type;
    const cudaDataType_t a_type = of.uses_fp8 ? CUDA_R_8F_E4M3 : half_type, b_type = !of.uses_fp8 ? half_type
                                                                                     : of.b_is_gradient
                                                                                         ? CUDA_R_8F_E5M2
                                                                                         : CUDA_R_8F_E4M3;
    check(cublasLtMatmulDescCreate(&gemm, CUBLAS_COMPUTE_32F, CUDA_R_32F), "creating a matmul descriptor");
    const cublasLtMatrixLayout_t first = of.a_is_transposed ? layout(a_type, of.k, of.m, of.a_stride, false)
                                                            : layout(a_type, of.m, of.k, of.a_stride, false);
    const cublasLtMatrixLayout_t second = of.b_is_transposed ? layout(b_type, of.n, of.k, of.b_stride, false)
                                                             : layout(b_type, of.k, of.n, of.b_stride, false);
    // The transposed form is D^T = op(B)^T op(A)^T.
    a = is_transposed ? second : first, b = is_transposed ? first : second;
    const bool a_transposed = is_transposed ? !of.b_is_transposed : of.a_is_transposed,
               b_transposed = is_transposed ? !of.a_is_transposed : of.b_is_transposed;
    const std::int64_t rows = is_transposed ? of.n : of.m, columns = is_transposed ? of.m : of.n;
    c = layout(output_type, rows, columns, of.c_stride, is_transposed);
    d = layout(output_type, rows, columns, of.d_stride, is_transposed);
    set(CUBLASLT_MATMUL_DESC_TRANSA, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(of.epilogue));
    if (of.epilogue == LtEpilogue::gelu_gradient) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, of.aux_stride);
    if (!of.uses_fp8) return;
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(uses_exact_accumulation(of) ? 0 : 1));
    if (of.epilogue == LtEpilogue::bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, half_type);
  }
  ~Description() {
    for (const cublasLtMatrixLayout_t matrix : {a, b, c, d}) cublasLtMatrixLayoutDestroy(matrix);
    cublasLtMatmulDescDestroy(gemm);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check(cublasLtMatmulDescSetAttribute(gemm, attribute, &value, sizeof value),
          "setting a matmul attribute");
  }
};

LtGemm::LtGemm(const LtShape& shape) : shape_(shape) {
  descriptions_[0] = std::make_unique<Description>(shape, false);
  // With a bias or an auxiliary matrix, the transposed form would require a transposed bias or auxiliary
  // matrix.
  if (shape.epilogue == LtEpilogue::none) descriptions_[1] = std::make_unique<Description>(shape, true);
}
LtGemm::~LtGemm() = default;

std::vector<LtAlgorithm> LtGemm::supported_algorithms(cublasLtHandle_t handle) const {
  constexpr int kMaxAlgorithms = 24;
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "creating a matmul preference");
  const std::size_t workspace = kLtWorkspace;
  // Partial sums must be accumulated in fp32, without rounding to 16 bits in between.
  const std::uint32_t schemes = shape_.is_wide
                                    ? static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK)
                                    : static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace),
        "setting the workspace size");
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof schemes),
        "setting the reduction schemes");
  std::vector<LtAlgorithm> result;
  for (const std::unique_ptr<Description>& description : descriptions_) {
    if (description == nullptr) continue;
    std::array<cublasLtMatmulHeuristicResult_t, kMaxAlgorithms> candidates{};
    int count = 0;
    if (cublasLtMatmulAlgoGetHeuristic(handle, description->gemm, description->a, description->b,
                                       description->c, description->d, preference, kMaxAlgorithms,
                                       candidates.data(), &count) != CUBLAS_STATUS_SUCCESS)
      continue;
    for (int i = 0; i < count; ++i)
      if (candidates[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
        result.push_back({description == descriptions_[1], candidates[static_cast<std::size_t>(i)].algo,
                          candidates[static_cast<std::size_t>(i)].workspaceSize});
  }
  cublasLtMatmulPreferenceDestroy(preference);
  return result;
}

bool LtGemm::accepts(cublasLtHandle_t handle, LtAlgorithm& algorithm) const {
  const std::unique_ptr<Description>& description = descriptions_[algorithm.is_transposed ? 1 : 0];
  if (description == nullptr) return false;
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(handle, description->gemm, description->a, description->b, description->c,
                              description->d, &algorithm.algorithm, &result) != CUBLAS_STATUS_SUCCESS)
    return false;
  algorithm.workspace_bytes = result.workspaceSize;
  return result.workspaceSize <= kLtWorkspace;
}

bool LtGemm::run(cublasLtHandle_t handle, const LtAlgorithm& algorithm, const LtOperands& operands,
                 void* workspace, cudaStream_t stream) const {
  Description& description = *descriptions_[algorithm.is_transposed ? 1 : 0];
  if (shape_.epilogue == LtEpilogue::bias) description.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.extra);
  if (shape_.epilogue == LtEpilogue::gelu_gradient)
    description.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.extra);
  if (shape_.uses_fp8) {
    description.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                    algorithm.is_transposed ? operands.b_scale : operands.a_scale);
    description.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                    algorithm.is_transposed ? operands.a_scale : operands.b_scale);
  }
  const float alpha = 1, beta = shape_.has_addend ? 1 : 0;
  const void* addend = shape_.has_addend ? operands.c : operands.d;
  const void *a = algorithm.is_transposed ? operands.b : operands.a,
             *b = algorithm.is_transposed ? operands.a : operands.b;
  return cublasLtMatmul(handle, description.gemm, &alpha, a, description.a, b, description.b, &beta, addend,
                        description.c, operands.d, description.d, &algorithm.algorithm, workspace,
                        kLtWorkspace, stream) == CUBLAS_STATUS_SUCCESS;
}

// Times each algorithm once, after a run that loads the kernel. Then times the best few in turn, so that
// clock drift affects all of them equally.
LtAlgorithm select_fastest(const LtGemm& gemm, std::vector<LtAlgorithm> algorithms, cublasLtHandle_t handle,
                           const LtOperands& operands, void* workspace, cudaStream_t stream) {
  constexpr std::size_t kFinalists = 6;
  constexpr int kRounds = 5, kRuns = 3;
  struct Entry {
    LtAlgorithm algorithm;
    std::vector<float> times;
  };
  StreamTimer timer(stream);
  const auto time = [&](const LtAlgorithm& algorithm, int runs) {
    timer.begin();
    for (int i = 0; i < runs; ++i) gemm.run(handle, algorithm, operands, workspace, stream);
    return timer.milliseconds() / static_cast<float>(runs);
  };
  std::vector<Entry> entries;
  for (const LtAlgorithm& algorithm : algorithms)
    if (gemm.run(handle, algorithm, operands, workspace, stream))
      entries.push_back({algorithm, {time(algorithm, 1)}});
  if (entries.empty()) return algorithms.empty() ? LtAlgorithm{} : algorithms.front();
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.times[0] < b.times[0]; });
  entries.resize(std::min(entries.size(), kFinalists));
  for (Entry& entry : entries) entry.times.clear();
  for (int round = 0; round < kRounds; ++round)
    for (Entry& entry : entries) entry.times.push_back(time(entry.algorithm, kRuns));
  const auto median = [](Entry& entry) {
    std::sort(entry.times.begin(), entry.times.end());
    return entry.times[entry.times.size() / 2];
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (median(entries[i]) < median(entries[best])) best = i;
  return entries[best].algorithm;
}

}  // namespace optimus
#endif
