// Measures the potential gain of fp8: the GEMMs of the benchmark cases' layers in bf16 and in fp8 with
// cuBLASLt, and the quantization kernels that produce the fp8 operands, on one GPU in one run. Computes the
// possible step time from them.
//
//   fwd    y = x W^T         e4m3 x e4m3 -> bf16
//   dgrad  dx = dy W         e5m2 x e4m3 -> bf16, W transposed
//   wgrad  dW += dy^T x      e5m2 x e4m3 -> fp32, both transposed
//
// The library's fp8 GEMMs need the summed dimension contiguous in both operands (TN), hence the transposed
// copies. "fast" allows the tensor cores to accumulate with fewer bits than fp32. For each GEMM, all offered
// algorithms run once and the 4 fastest in alternating rounds; medians are reported. Also prints which
// epilogues the library supports, and the cost of scales per row and per block of 128. Shapes:
// gemm_product.cuh. Step times: docs/results/performance.md, measured with the same bf16 GEMMs.
//
//   flags="-O2 -gencode=arch=compute_90a,code=sm_90a -Isrc -I$CU13/include"
//   nvcc $flags -std=c++20 -c bench/gpu/fp8_quantise.cu
//   nvcc $flags -std=c++17 -c bench/gpu/fp8_products.cu
//   nvcc -cudart shared fp8_products.o fp8_quantise.o -L$CU13/lib -l:libcublasLt.so.13 -o fp8_products
#include <cuda_fp8.h>

#include <array>
#include <map>

#include "gemm_product.cuh"

// Defined in fp8_quantise.cu.
void quantize_matrix(void* from, void* to, void* transposed, long rows, long width, bool is_gradient,
                     const float* scale, unsigned* maximum);

namespace {

constexpr size_t kWorkspace = 64 * kMiB;

enum class Scales { one, by_row, by_block };
enum class Kind { bf16, fp8, fp8_fast };
const char* const kKindNames[] = {"bf16", "fp8", "fp8 fast"};

struct Problem {
  int64_t m = 0, n = 0, k = 0;  // D is [m, n], column-major
  bool a_is_transposed = true, b_is_transposed = false;
  cudaDataType_t a = CUDA_R_16BF, b = CUDA_R_16BF, d = CUDA_R_16BF;
  float beta = 0;
  bool is_fast = false;
  Scales scales = Scales::one;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool is_fp8() const { return a == CUDA_R_8F_E4M3; }
};

// x, w and dy: [tokens, in], [out, in] and [tokens, out] in bf16; the same in fp8, and transposed in fp8.
struct Buffers {
  bf16 *x, *w, *dy;
  uint8_t *x8, *x8t, *w8, *w8t, *dy8, *dy8t;
  void *out, *other, *workspace;
  float *scales, *rows;  // a single scale; one scale per row or block
  uint32_t* maximum;
  bf16* bias;
};

template <class T>
T* allocate(size_t count) {
  void* p = nullptr;
  cuda_ok(cudaMalloc(&p, count * sizeof(T)), "allocate");
  return static_cast<T*>(p);
}

struct Description {
  cublasLtMatmulDesc_t gemm = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;

  template <class V>
  cublasStatus_t set(cublasLtMatmulDescAttributes_t which, V value) {
    return cublasLtMatmulDescSetAttribute(gemm, which, &value, sizeof value);
  }
  Description(const Problem& p, const Buffers& mem) {
    blas_ok(cublasLtMatmulDescCreate(&gemm, CUBLAS_COMPUTE_32F, CUDA_R_32F), "desc");
    const auto layout = [](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t rows, int64_t columns) {
      blas_ok(cublasLtMatrixLayoutCreate(to, type, uint64_t(rows), uint64_t(columns), rows), "layout");
    };
    p.a_is_transposed ? layout(&a, p.a, p.k, p.m) : layout(&a, p.a, p.m, p.k);
    p.b_is_transposed ? layout(&b, p.b, p.n, p.k) : layout(&b, p.b, p.k, p.n);
    layout(&c, p.d == CUDA_R_8F_E4M3 ? CUDA_R_16BF : p.d, p.m, p.n), layout(&d, p.d, p.m, p.n);
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.a_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.b_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(mem.bias));
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    if (p.epilogue == CUBLASLT_EPILOGUE_DGELU || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, mem.other);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m);
      if (p.is_fp8()) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, CUDA_R_16BF);
    }
    if (!p.is_fp8()) return;
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(p.is_fast));
    const bool is_one = p.scales == Scales::one;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, is_one ? mem.scales : mem.rows);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, is_one ? mem.scales : mem.rows);
    if (p.scales == Scales::by_row) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
    }
    if (p.scales == Scales::by_block) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
    }
  }
  ~Description() {
    for (auto layout : {a, b, c, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(gemm);
  }
};

struct Bench {
  cublasLtHandle_t lt = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  Buffers mem{};

  std::vector<cublasLtMatmulAlgo_t> offered_algorithms(const Problem& p, Description& what) const {
    cublasLtMatmulPreference_t preference = nullptr;
    blas_ok(cublasLtMatmulPreferenceCreate(&preference), "preference");
    const size_t workspace = kWorkspace;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    std::array<cublasLtMatmulHeuristicResult_t, 24> found{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(lt, what.gemm, what.a, what.b, what.c, what.d,
                                                       preference, int(found.size()), found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<cublasLtMatmulAlgo_t> result;
    if (status != CUBLAS_STATUS_SUCCESS) return result;
    for (int i = 0; i < count; ++i)
      if (found[size_t(i)].state == CUBLAS_STATUS_SUCCESS) result.push_back(found[size_t(i)].algo);
    (void)p;
    return result;
  }
  template <class Work>
  double ms(int runs, Work work) const {
    cuda_ok(cudaEventRecord(begin), "event");
    for (int i = 0; i < runs; ++i) work();
    cuda_ok(cudaEventRecord(end), "event");
    cuda_ok(cudaEventSynchronize(end), "wait");
    float total = 0;
    cuda_ok(cudaEventElapsedTime(&total, begin, end), "time");
    return double(total) / runs;
  }
  // Milliseconds of the fastest offered algorithm; infinity if there is none.
  double best(const Problem& p, const void* a, const void* b) const {
    Description what(p, mem);
    const auto run = [&](const cublasLtMatmulAlgo_t& algo) {
      const float one = 1;
      return cublasLtMatmul(lt, what.gemm, &one, a, what.a, b, what.b, &p.beta, mem.out, what.c, mem.out,
                            what.d, &algo, mem.workspace, kWorkspace, nullptr);
    };
    std::vector<std::pair<double, cublasLtMatmulAlgo_t>> timed;
    for (const auto& algo : offered_algorithms(p, what))
      if (run(algo) == CUBLAS_STATUS_SUCCESS) timed.push_back({ms(2, [&] { run(algo); }), algo});
    if (timed.empty()) return std::numeric_limits<double>::infinity();
    std::sort(timed.begin(), timed.end(), [](auto& x, auto& y) { return x.first < y.first; });
    timed.resize(std::min<size_t>(4, timed.size()));
    double fastest = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> rounds(timed.size());
    for (int round = 0; round < 3; ++round)
      for (size_t i = 0; i < timed.size(); ++i) {
        const int runs = std::max(2, int(25 / timed[i].first));
        rounds[i].push_back(ms(runs, [&] { run(timed[i].second); }));
      }
    for (const auto& times : rounds) fastest = std::min(fastest, median(times));
    return fastest;
  }
};

enum Direction { kFwd, kDgrad, kWgrad, kNumDirections };
const char* const kDirections[] = {"fwd", "dgrad", "wgrad"};

Problem problem_of(const Linear& lin, int64_t tokens, Direction direction, Kind kind) {
  const int64_t in = lin.in, out = lin.out;
  const bool is_fp8 = kind != Kind::bf16;
  Problem p{};
  if (direction == kFwd) p.m = out, p.n = tokens, p.k = in;
  if (direction == kDgrad) p.m = in, p.n = tokens, p.k = out, p.a_is_transposed = is_fp8;
  if (direction == kWgrad)
    p.m = in, p.n = out, p.k = tokens, p.a_is_transposed = is_fp8, p.b_is_transposed = !is_fp8;
  if (is_fp8) p.a = CUDA_R_8F_E4M3, p.b = direction == kFwd ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
  if (direction == kWgrad) p.d = CUDA_R_32F, p.beta = 1;
  p.is_fast = kind == Kind::fp8_fast;
  return p;
}

struct Pair {
  const void *a, *b;
};
Pair operands_of(const Buffers& mem, Direction direction, Kind kind) {
  const bool is_fp8 = kind != Kind::bf16;
  if (direction == kFwd) return is_fp8 ? Pair{mem.w8, mem.x8} : Pair{mem.w, mem.x};
  if (direction == kDgrad) return is_fp8 ? Pair{mem.w8t, mem.dy8} : Pair{mem.w, mem.dy};
  return is_fp8 ? Pair{mem.x8t, mem.dy8t} : Pair{mem.x, mem.dy};
}

Buffers allocate_buffers() {
  size_t x = 0, w = 0, y = 0;
  for (const Case& c : kCases)
    for (const Linear& lin : linears(c)) {
      if (lin.name == "head") continue;
      x = std::max<size_t>(x, c.tokens() * lin.in), w = std::max<size_t>(w, lin.in * lin.out),
      y = std::max<size_t>(y, c.tokens() * lin.out);
    }
  Buffers mem{};
  mem.x = allocate<bf16>(x), mem.w = allocate<bf16>(w), mem.dy = allocate<bf16>(y);
  mem.x8 = allocate<uint8_t>(x), mem.x8t = allocate<uint8_t>(x), mem.w8 = allocate<uint8_t>(w),
  mem.w8t = allocate<uint8_t>(w), mem.dy8 = allocate<uint8_t>(y), mem.dy8t = allocate<uint8_t>(y);
  mem.out = allocate<char>(std::max(2 * std::max(x, y), 4 * w)),
  mem.other = allocate<char>(2 * std::max(x, y));
  mem.workspace = allocate<char>(kWorkspace);
  mem.scales = allocate<float>(4), mem.rows = allocate<float>(1 << 24), mem.maximum = allocate<uint32_t>(4);
  mem.bias = allocate<bf16>(1 << 20);
  const std::vector<float> ones(1 << 24, 1.0f);
  cuda_ok(cudaMemcpy(mem.rows, ones.data(), ones.size() * 4, cudaMemcpyHostToDevice), "scales");
  cuda_ok(cudaMemcpy(mem.scales, ones.data(), 16, cudaMemcpyHostToDevice), "scales");
  fill_normal<<<1024, 256>>>(mem.x, x, 1.0f, 1), fill_normal<<<1024, 256>>>(mem.w, w, 1.0f, 2);
  fill_normal<<<1024, 256>>>(mem.dy, y, 1.0f, 3), fill_normal<<<1024, 256>>>(mem.bias, 1 << 20, 1.0f, 4);
  fill_normal<<<1024, 256>>>(static_cast<bf16*>(mem.other), std::max(x, y), 1.0f, 5);
  cuda_ok(cudaMemset(mem.maximum, 0, 16), "maximum");
  cuda_ok(cudaDeviceSynchronize(), "fill");
  return mem;
}

void quantize(const Buffers& mem, bf16* from, uint8_t* to, uint8_t* transposed, int64_t rows, int64_t width,
              bool is_gradient) {
  quantize_matrix(from, to, transposed, rows, width, is_gradient, mem.scales, mem.maximum);
  cuda_ok(cudaGetLastError(), "quantise");
}

struct StepOf {  // docs/results/performance.md, tokens per second in bf16
  const char* name;
  double tokens_per_second;
};
const StepOf kSteps[] = {{"gpt2-124m", 596415},
                         {"gpt2-1.5b", 52701},
                         {"llama-1b-2k", 71830},
                         {"llama-1b-4k", 66458},
                         {"llama-8b8l-4k", 41301}};

}  // namespace

int main() {
  try {
    Bench bench;
    blas_ok(cublasLtCreate(&bench.lt), "cublasLt");
    cuda_ok(cudaEventCreate(&bench.begin), "event"), cuda_ok(cudaEventCreate(&bench.end), "event");
    bench.mem = allocate_buffers();
    const Buffers& mem = bench.mem;
    cudaDeviceProp device{};
    cuda_ok(cudaGetDeviceProperties(&device, 0), "device");
    printf("%s, cuBLASLt %zu\n", device.name, cublasLtGetVersion());
    for (const Kind kind : {Kind::bf16, Kind::fp8, Kind::fp8_fast}) {
      Problem cube;
      cube.m = cube.n = cube.k = 8192;
      if (kind != Kind::bf16) cube.a = cube.b = CUDA_R_8F_E4M3, cube.is_fast = kind == Kind::fp8_fast;
      quantize(mem, mem.x, mem.x8, mem.x8t, 8192, 8192, false),
          quantize(mem, mem.dy, mem.dy8, mem.dy8t, 8192, 8192, false);
      const bool is_fp8 = kind != Kind::bf16;
      const double ms = bench.best(cube, is_fp8 ? static_cast<void*>(mem.x8) : mem.x,
                                   is_fp8 ? static_cast<void*>(mem.dy8) : mem.dy);
      printf("8192 cube, %s: %.0f TFLOP/s\n", kKindNames[int(kind)], 2.0 * 8192 * 8192 * 8192 / ms / 1e9);
    }

    printf("\nepilogues, number of offered algorithms (llama-1b w2 forward and dgrad shapes)\n");
    const Linear w2{"w2", 8192, 2048, 1, false};
    struct Form {
      const char* name;
      uint32_t epilogue;
      float beta;
      Direction direction;
    };
    const Form forms[] = {{"plain", CUBLASLT_EPILOGUE_DEFAULT, 0.f, kFwd},
                          {"bias", CUBLASLT_EPILOGUE_BIAS, 0.f, kFwd},
                          {"addend", CUBLASLT_EPILOGUE_DEFAULT, 1.f, kFwd},
                          {"bias + addend", CUBLASLT_EPILOGUE_BIAS, 1.f, kFwd},
                          {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0.f, kFwd},
                          {"dgelu", CUBLASLT_EPILOGUE_DGELU, 0.f, kDgrad}};
    for (const Form& form : forms)
      for (const bool to_fp8 : {false, true}) {
        Problem p = problem_of(w2, 16384, form.direction, Kind::fp8);
        p.epilogue = form.epilogue, p.beta = form.beta;
        if (to_fp8) p.d = CUDA_R_8F_E4M3;
        Description what(p, mem);
        printf("  %-14s D %s: %zu algorithms", form.name, to_fp8 ? "e4m3" : "bf16",
               bench.offered_algorithms(p, what).size());
        if (!to_fp8) {
          const Pair of = operands_of(mem, form.direction, Kind::fp8);
          printf(", %.3f ms", bench.best(p, of.a, of.b));
        }
        printf("\n");
      }

    std::map<std::string, std::array<double, 3>>
        sums;  // case -> ms of the GEMMs of all layers for one micro-batch, by kind
    std::map<std::string, double> quantize_ms, fused;  // case -> ms of quantization per micro-batch and layer
    std::map<std::string, double> of_weights;          // per step and layer
    for (const Case& c : kCases) {
      if (c.same_as) continue;
      printf("\n%s, %ld tokens: ms (TFLOP/s)\n  %-5s %-6s %18s %18s %18s %9s %9s\n", c.name, c.tokens(), "",
             "", "bf16", "fp8", "fp8 fast", "by row", "by block");
      for (const Linear& lin : linears(c)) {
        if (lin.name == "head") continue;
        quantize(mem, mem.x, mem.x8, mem.x8t, c.tokens(), lin.in, false);
        quantize(mem, mem.w, mem.w8, mem.w8t, lin.out, lin.in, false);
        quantize(mem, mem.dy, mem.dy8, mem.dy8t, c.tokens(), lin.out, true);
        const double flops = 2.0 * double(c.tokens()) * double(lin.in) * double(lin.out);
        for (int direction = 0; direction < kNumDirections; ++direction) {
          printf("  %-5s %-6s", lin.name.c_str(), kDirections[direction]);
          for (const Kind kind : {Kind::bf16, Kind::fp8, Kind::fp8_fast}) {
            const Pair of = operands_of(mem, Direction(direction), kind);
            const double ms = bench.best(problem_of(lin, c.tokens(), Direction(direction), kind), of.a, of.b);
            sums[c.name][size_t(kind)] += ms;
            printf(" %8.3f (%7.0f)", ms, flops / ms / 1e9);
          }
          if (direction == kFwd)
            for (const Scales scales : {Scales::by_row, Scales::by_block}) {
              Problem p = problem_of(lin, c.tokens(), kFwd, Kind::fp8);
              p.scales = scales;
              if (scales == Scales::by_row) p.is_fast = true;
              const Pair of = operands_of(mem, kFwd, Kind::fp8);
              printf(" %9.3f", bench.best(p, of.a, of.b));
            }
          printf("\n");
          fflush(stdout);
        }
        const auto time = [&](bf16* from, uint8_t* to, uint8_t* transposed, int64_t rows, int64_t width) {
          quantize(mem, from, to, transposed, rows, width, false);
          return bench.ms(20, [&] { quantize(mem, from, to, transposed, rows, width, false); });
        };
        const double x_both = time(mem.x, mem.x8, mem.x8t, c.tokens(), lin.in),
                     x_plain = time(mem.x, mem.x8, nullptr, c.tokens(), lin.in),
                     x_transposed = time(mem.x, nullptr, mem.x8t, c.tokens(), lin.in),
                     w_both = time(mem.w, mem.w8, mem.w8t, lin.out, lin.in),
                     dy_both = time(mem.dy, mem.dy8, mem.dy8t, c.tokens(), lin.out);
        quantize_ms[c.name] += x_both + dy_both, of_weights[c.name] += w_both;
        // If quantization is fused into the producer, it writes two fp8 copies instead of one bf16 copy: the
        // same number of bytes, so the additional cost is zero.
        printf(
            "        quantize x both %.3f (%.0f GB/s), plain %.3f, transposed %.3f; w both %.3f; dy both "
            "%.3f ms\n",
            x_both, 4.0 * double(c.tokens() * lin.in) / x_both / 1e6, x_plain, x_transposed, w_both, dy_both);
      }
    }
    sums["llama-1b-4k"] = sums["llama-1b-2k"], quantize_ms["llama-1b-4k"] = quantize_ms["llama-1b-2k"],
    of_weights["llama-1b-4k"] = of_weights["llama-1b-2k"];

    printf(
        "\nstep times in ms; fp8 in all layers but the first and the last; fast accumulation in forward "
        "only\n");
    printf("%-14s %8s %10s %6s %10s %10s | %18s %18s %18s\n", "case", "GEMMs", "products", "share", "fp8",
           "fp8 fast", "gain, quantised free", "a pass each", "fast, free");
    for (const Case& c : kCases)
      for (const StepOf& step : kSteps) {
        if (std::string(step.name) != c.name) continue;
        const double total = double(c.tokens() * c.accum) / step.tokens_per_second * 1e3,
                     layers = c.layers - 2;
        const double num_fp8_layers = layers * c.accum, bf = sums[c.name][0] * num_fp8_layers,
                     fp8 = sums[c.name][1] * num_fp8_layers, fast = sums[c.name][2] * num_fp8_layers;
        const double quantizing = quantize_ms[c.name] * num_fp8_layers + of_weights[c.name] * layers;
        printf("%-14s %8.1f %10.1f %5.0f%% %10.1f %10.1f | %18.3f %18.3f %18.3f\n", c.name, total, bf,
               100 * bf / total, fp8, fast, total / (total - bf + fp8),
               total / (total - bf + fp8 + quantizing), total / (total - bf + fast));
      }
  } catch (const std::exception& e) {
    printf("STOPPED: %s\n", e.what());
    return 1;
  }
}
