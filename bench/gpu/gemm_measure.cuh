// One cuBLASLt configuration for one GEMM: describe, run, time, check and vary it. The search is in
// gemm_best.cuh.
#pragma once

#include <memory>

#include "gemm_product.cuh"

// ------------------------------------------------------------------------------------------------ cuBLASLt
struct Algo {
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};

template <class T>
T algo_get(const Algo& a, cublasLtMatmulAlgoConfigAttributes_t what) {
  T value{};
  size_t written = 0;
  cublasLtMatmulAlgoConfigGetAttribute(&a.algo, what, &value, sizeof value, &written);
  return value;
}

template <class T>
bool algo_set(Algo& a, cublasLtMatmulAlgoConfigAttributes_t what, T value) {
  return cublasLtMatmulAlgoConfigSetAttribute(&a.algo, what, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

template <class T>
T algo_cap(const Algo& a, cublasLtMatmulAlgoCapAttributes_t what) {
  T value{};
  size_t written = 0;
  cublasLtMatmulAlgoCapGetAttribute(&a.algo, what, &value, sizeof value, &written);
  return value;
}

inline std::string describe(const Algo& a) {
  return format("id%d tile %s stages %s cluster %s splitK %d red %u swz %u opt %u inner %u ws %.1fM",
                algo_get<int32_t>(a, CUBLASLT_ALGO_CONFIG_ID),
                name_of<cublasLtMatmulTile_t, CUBLASLT_MATMUL_TILE_END>(
                    algo_get<uint32_t>(a, CUBLASLT_ALGO_CONFIG_TILE_ID))
                    .c_str(),
                name_of<cublasLtMatmulStages_t, CUBLASLT_MATMUL_STAGES_END>(
                    algo_get<uint32_t>(a, CUBLASLT_ALGO_CONFIG_STAGES_ID))
                    .c_str(),
                name_of<cublasLtClusterShape_t, CUBLASLT_CLUSTER_SHAPE_END>(
                    algo_get<uint16_t>(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID))
                    .c_str(),
                algo_get<int32_t>(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                algo_get<uint32_t>(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                algo_get<uint32_t>(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                algo_get<uint32_t>(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                unsigned(algo_get<uint16_t>(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)),
                double(a.workspace) / kMiB);
}

// Owns the descriptors of one GEMM in one orientation: D(m x n) = op(A) op(B) + beta C is left * right + ...
class Plan {
 public:
  Plan(cublasLtHandle_t lt, const Gemm& p, void* workspace) : gemm(p), lt_(lt), workspace_(workspace) {
    blas_ok(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "desc");
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_left());
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_right());
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(p.bias));
    if (p.aux) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(p.aux));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.out.ld());
    }
    input(&a_, p.left, p.rows, p.inner);
    input(&b_, p.right, p.inner, p.cols);
    blas_ok(cublasLtMatrixLayoutCreate(&d_, out_type(), p.rows, p.cols, p.out.ld()), "layout");
    const cublasLtOrder_t order = p.out.is_column_major() ? CUBLASLT_ORDER_COL : CUBLASLT_ORDER_ROW;
    blas_ok(cublasLtMatrixLayoutSetAttribute(d_, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
            "order");
  }
  ~Plan() {
    for (auto layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(desc_);
  }
  Plan(const Plan&) = delete;

  cublasOperation_t op_left() const { return gemm.left.is_column_major() ? CUBLAS_OP_N : CUBLAS_OP_T; }
  cublasOperation_t op_right() const { return gemm.right.is_column_major() ? CUBLAS_OP_N : CUBLAS_OP_T; }
  cudaDataType_t out_type() const { return gemm.out_is_f32 ? CUDA_R_32F : CUDA_R_16BF; }

  // Empty if the library does not support this problem.
  std::vector<Algo> heuristics(size_t max_workspace, int count) const {
    cublasLtMatmulPreference_t preference;
    blas_ok(cublasLtMatmulPreferenceCreate(&preference), "preference");
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &max_workspace,
                                         sizeof max_workspace);
    std::vector<cublasLtMatmulHeuristicResult_t> results(count);
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(lt_, desc_, a_, b_, d_, d_, preference, count, results.data(), &found);
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<Algo> algos;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS)
        algos.push_back({results[i].algo, results[i].workspaceSize});
    return algos;
  }

  // Returns whether a modified configuration can run, and sets its workspace size.
  bool accepts(Algo& algo) const {
    cublasLtMatmulHeuristicResult_t result{};
    const auto status = cublasLtMatmulAlgoCheck(lt_, desc_, a_, b_, d_, d_, &algo.algo, &result);
    algo.workspace = result.workspaceSize;
    return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
           algo.workspace <= kSearchWorkspace;
  }

  bool run(const Algo& algo) const {
    const float one = 1;
    const void* c = gemm.addend ? gemm.addend : gemm.out.data;
    return cublasLtMatmul(lt_, desc_, &one, gemm.left.data, a_, gemm.right.data, b_, &gemm.beta, c, d_,
                          gemm.out.data, d_, &algo.algo, workspace_,
                          std::max(algo.workspace, kDefaultWorkspace), nullptr) == CUBLAS_STATUS_SUCCESS;
  }

  bool run_gemm_ex(cublasHandle_t blas) const {  // only for column-major outputs accumulated in place
    const Gemm& p = gemm;
    const float one = 1;
    return cublasGemmEx(blas, op_left(), op_right(), int(p.rows), int(p.cols), int(p.inner), &one,
                        p.left.data, CUDA_R_16BF, int(p.left.ld()), p.right.data, CUDA_R_16BF,
                        int(p.right.ld()), &p.beta, p.out.data, out_type(), int(p.out.ld()),
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  }

  const Gemm gemm;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    blas_ok(cublasLtMatmulDescSetAttribute(desc_, what, &value, sizeof value), "desc attribute");
  }
  static void input(cublasLtMatrixLayout_t* layout, const View& v, int64_t rows, int64_t cols) {
    if (!v.is_column_major()) std::swap(rows, cols);  // stored transposed; the operation transposes it back
    blas_ok(cublasLtMatrixLayoutCreate(layout, CUDA_R_16BF, rows, cols, v.ld()), "layout");
  }

  cublasLtHandle_t lt_;
  void* workspace_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

// ------------------------------------------------------------------------------------------------ measuring
struct Device {
  cublasLtHandle_t lt;
  cublasHandle_t blas;
  Memory memory;
  cudaEvent_t begin, end;
  double deadline;
  bool vary;
};

struct Variant {
  std::unique_ptr<Plan> plan;
  Storage storage;
  bool is_row;  // the transposed problem; see the top of gemm_search.cu
};

struct Candidate {
  std::string origin;  // default, gemmEx, heur<rank>, vary
  const Variant* variant;
  Algo algo{};
  double screen_ms = std::numeric_limits<double>::infinity();
  double error = -1;
  std::vector<double> rescreen_ms, select_ms, confirm_ms;

  bool is_gemm_ex() const { return origin == "gemmEx"; }
  std::string text() const {
    return origin + " " + kStorageNames[variant->storage] + "/" + (variant->is_row ? "row" : "col") + " " +
           (is_gemm_ex() ? "" : describe(algo));
  }
  std::string key() const { return format("%p ", static_cast<const void*>(variant)) + describe(algo); }
};

inline bool run(const Device& dev, const Candidate& c) {
  return c.is_gemm_ex() ? c.variant->plan->run_gemm_ex(dev.blas) : c.variant->plan->run(c.algo);
}

// Milliseconds per run over `times` runs; infinity if the library rejects the configuration.
inline double timed(const Device& dev, const Candidate& c, int times) {
  bool ok = true;
  cuda_ok(cudaEventRecord(dev.begin), "event");
  for (int i = 0; i < times; ++i) ok = ok && run(dev, c);
  cuda_ok(cudaEventRecord(dev.end), "event");
  cuda_ok(cudaEventSynchronize(dev.end), c.text().c_str());
  float ms = 0;
  cuda_ok(cudaEventElapsedTime(&ms, dev.begin, dev.end), "event");
  // clears the error of a rejected launch, so that it is not attributed to the next candidate
  if (!ok) cudaGetLastError();
  return ok ? double(ms) / times : std::numeric_limits<double>::infinity();
}

inline int repeats_for(double budget_ms, double run_ms, int least, int most) {
  return std::max(least, std::min(most, int(std::lround(budget_ms / std::max(run_ms, 1e-3)))));
}

inline void screen(const Device& dev, Candidate& c, double best_ms) {
  if (!std::isfinite(timed(dev, c, 1))) return;  // also loads the kernel
  c.screen_ms = timed(dev, c, 1);
  if (c.screen_ms > 1.2 * best_ms) return;
  const int times = repeats_for(40, c.screen_ms, 2, 5);
  for (int warm = 0; warm < std::min(2, times - 1); ++warm) run(dev, c);
  c.screen_ms = timed(dev, c, times);
}

// Runs the candidate once on a cleared output and compares the result with exact sums.
inline bool passes_check(const Device& dev, Candidate& c) {
  const Gemm& p = c.variant->plan->gemm;
  cuda_ok(cudaMemset(p.out.data, 0, p.out_bytes()), "clear");
  if (!run(dev, c)) return false;
  c.error = sampled_error(p, dev.memory);
  if (c.error > kErrorLimit) printf("    WRONG RESULT (error %.3g): %s\n", c.error, c.text().c_str());
  return c.error <= kErrorLimit;
}

using Times = std::vector<double> Candidate::*;

// Interleaved rounds; the order rotates by one each round.
inline void rounds(const Device& dev, const std::vector<Candidate*>& contestants, Times where, int count,
                   double warm_ms, double timed_ms) {
  for (int round = 0; round < count; ++round)
    for (size_t i = 0; i < contestants.size(); ++i) {
      Candidate& c = *contestants[(i + round) % contestants.size()];
      if (warm_ms > 0) timed(dev, c, repeats_for(warm_ms, c.screen_ms, 1, 2000));
      (c.*where).push_back(timed(dev, c, repeats_for(timed_ms, c.screen_ms, 2, 4000)));
    }
}

// Modified copies of one configuration that the library accepts.
inline std::vector<Candidate> variations(const Candidate& base, bool is_weight_grad) {
  std::vector<Candidate> out;
  auto offer = [&](Algo algo) {
    if (base.variant->plan->accepts(algo)) out.push_back({"vary", base.variant, algo});
  };
  if (is_weight_grad && algo_cap<int32_t>(base.algo, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT)) {
    const uint32_t schemes = algo_cap<uint32_t>(base.algo, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK);
    for (int32_t split : {1, 2, 3, 4, 6, 8})
      for (uint32_t scheme : {0, 1, 2, 4}) {
        if ((split == 1) != (scheme == 0) || (scheme & schemes) != scheme) continue;
        Algo algo = base.algo;
        if (algo_set(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split) &&
            algo_set(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme))
          offer(algo);
      }
  }
  for (uint16_t cluster :
       {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
        CUBLASLT_CLUSTER_SHAPE_2x2x1, CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x4x1}) {
    Algo algo = base.algo;
    if (algo_set(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster)) offer(algo);
  }
  if (algo_cap<uint32_t>(base.algo, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT)) {
    Algo algo = base.algo;
    const uint32_t toggled = 1 - std::min(1u, algo_get<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING));
    if (algo_set(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, toggled)) offer(algo);
  }
  const uint32_t options = algo_cap<uint32_t>(base.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX);
  for (uint32_t option = 0; option <= std::min(options, 7u); ++option) {
    Algo algo = base.algo;
    if (options && algo_set(algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option)) offer(algo);
  }
  return out;
}
