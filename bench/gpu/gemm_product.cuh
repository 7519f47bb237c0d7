// The GEMMs of gemm_search.cu: benchmark cases and their linear layers, matrices in memory, and the check of
// a result against double-precision sums. gemm_measure.cuh runs them.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using bf16 = __nv_bfloat16;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kDefaultWorkspace = 32 * kMiB;
constexpr size_t kSearchWorkspace = 256 * kMiB;
constexpr int kHeuristicResults = 64;
constexpr double kElementwiseBytesPerMs =
    4.2e9;  // assumed bandwidth of a separate elementwise kernel: 4.2 TB/s

// --------------------------------------------------------------------------------------------- errors, text
inline std::string format(const char* text, ...) {
  char buffer[4096];
  va_list args;
  va_start(args, text);
  vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  return buffer;
}

inline void cuda_ok(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(format("%s: %s", what, cudaGetErrorString(status)));
}

inline void blas_ok(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(format("%s: cublas status %d", what, int(status)));
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// Enumerator names extracted from the compiler's spelling, e.g. CUBLASLT_MATMUL_TILE_128x256 -> "128x256".
template <auto Value>
std::string enumerator_tail() {
  const std::string full = __PRETTY_FUNCTION__;
  const size_t end = full.find_first_of("];", full.find("Value = "));
  const size_t start = full.find_last_of("_)", end) + 1;
  return full.substr(start, end - start);
}

template <class Enum, size_t... Index>
std::vector<std::string> enumerator_tails(std::index_sequence<Index...>) {
  return {enumerator_tail<static_cast<Enum>(Index)>()...};
}

template <class Enum, size_t End>
std::string name_of(uint32_t id) {
  static const std::vector<std::string> names = enumerator_tails<Enum>(std::make_index_sequence<End>());
  return id < names.size() ? names[id] : format("#%u", id);
}

// ------------------------------------------------------------------------------------------------ the cases
struct Case {
  const char* name;
  bool is_gpt2, is_tied;
  int layers;
  int64_t width, heads, kv_heads, ffn, vocab, seq, micro;
  int accum;
  const char* same_as;  // another case with identical GEMMs, or null
  int64_t tokens() const { return seq * micro; }
};

// bench_common.CASES, in the order in which partial results are most useful.
const std::vector<Case> kCases = {
    {"llama-1b-2k", false, true, 16, 2048, 32, 8, 8192, 128256, 2048, 8, 2, nullptr},
    {"gpt2-124m", true, true, 12, 768, 12, 12, 3072, 50304, 1024, 64, 2, nullptr},
    {"gpt2-1.5b", true, true, 48, 1600, 25, 25, 6400, 50304, 1024, 16, 2, nullptr},
    {"llama-8b8l-4k", false, false, 8, 4096, 32, 8, 14336, 128256, 4096, 4, 2, nullptr},
    {"llama-1b-4k", false, true, 16, 2048, 32, 8, 8192, 128256, 4096, 4, 2, "llama-1b-2k"},
};

struct Linear {
  std::string name;
  int64_t in, out;
  int count;
  bool may_store_kn;
};

inline std::vector<Linear> linears(const Case& c) {
  const int64_t d = c.width, head_dim = d / c.heads;
  const Linear head{"head", d, c.vocab, 1, !c.is_tied};
  if (c.is_gpt2)
    return {{"qkv", d, 3 * d, c.layers, true},
            {"proj", d, d, c.layers, true},
            {"fc1", d, c.ffn, c.layers, true},
            {"fc2", c.ffn, d, c.layers, true},
            head};
  return {{"qkv", d, (c.heads + 2 * c.kv_heads) * head_dim, c.layers, true},
          {"wo", c.heads * head_dim, d, c.layers, true},
          {"w13", d, 2 * c.ffn, c.layers, true},
          {"w2", c.ffn, d, c.layers, true},
          head};
}

enum Pass { kForward, kInputGrad, kWeightGradBf16, kWeightGradF32, kNumPasses };
const char* const kPassNames[] = {"fwd", "dgrad", "wgrad16", "wgrad32"};
enum Storage { kNK, kKN };
const char* const kStorageNames[] = {"nk", "kn"};

// ----------------------------------------------------------------------------------------------- one GEMM
// A matrix in memory: element (r, c) at data[r * row_stride + c * col_stride]; one of the strides is 1.
struct View {
  void* data = nullptr;
  int64_t row_stride = 0, col_stride = 0;
  View transposed() const { return {data, col_stride, row_stride}; }
  bool is_column_major() const { return row_stride == 1; }
  int64_t ld() const { return is_column_major() ? col_stride : row_stride; }
};

inline View row_major(void* data, int64_t cols) { return {data, cols, 1}; }

// out[rows, cols] = epilogue(left[rows, inner] right[inner, cols] + beta * addend)
struct Gemm {
  View left, right, out;
  int64_t rows, cols, inner;
  float beta = 0;
  void* addend = nullptr;  // same layout as out; null: out itself
  bool out_is_f32 = false;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bf16 *bias = nullptr, *aux = nullptr;  // aux has the layout of out

  double flops() const { return 2.0 * double(rows) * double(cols) * double(inner); }
  size_t out_bytes() const { return size_t(rows) * size_t(cols) * (out_is_f32 ? 4 : 2); }
  Gemm transposed() const {
    Gemm t = *this;
    t.left = right.transposed(), t.right = left.transposed(), t.out = out.transposed();
    std::swap(t.rows, t.cols);
    return t;
  }
};

// Device memory shared by all GEMMs. Inputs are normal random numbers and are only read.
struct Memory {
  bf16 *x, *w, *dy, *residual, *pre_gelu, *bias;
  void* out;      // outputs, and gradients accumulated in place
  bf16* aux_out;  // second output of a GELU epilogue
  bf16* bias_grad;
  void* workspace;
  float* errors;  // result of the sampled check
};

inline Gemm make_gemm(const Memory& mem, const Linear& lin, int64_t tokens, Pass pass, Storage storage) {
  const int64_t n = lin.out, k = lin.in, m = tokens;
  const View x = row_major(mem.x, k), dy = row_major(mem.dy, n);
  const View weight =
      storage == kNK ? row_major(mem.w, k) : row_major(mem.w, n).transposed();  // [N, K] in both cases
  if (pass == kForward) return {x, weight.transposed(), row_major(mem.out, n), m, n, k};
  if (pass == kInputGrad) return {dy, weight, row_major(mem.out, k), m, k, n};
  const View grad = storage == kNK ? row_major(mem.out, k) : row_major(mem.out, n).transposed();
  Gemm p{dy.transposed(), x, grad, n, k, m};
  p.beta = 1;
  p.out_is_f32 = pass == kWeightGradF32;
  return p;
}

// ------------------------------------------------------------------------------------------------ kernels
// integer finalizer: sufficiently random for power consumption and checks
inline __device__ uint32_t hash(uint32_t v) {
  v ^= v >> 16, v *= 0x7feb352dU, v ^= v >> 15, v *= 0x846ca68bU;
  return v ^ (v >> 16);
}

static __global__ void fill_normal(bf16* data, size_t count, float scale, uint32_t seed) {
  const size_t stride = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t a = hash(hash(uint32_t(i)) ^ hash(seed)), b = hash(a + uint32_t(i >> 32) + 0x9e3779b9U);
    const float u = (float(a >> 8) + 0.5f) / 16777216.0f, v = float(b >> 8) / 16777216.0f;
    data[i] = __float2bfloat16(scale * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
  }
}

struct CheckArgs {
  const bf16 *left, *right, *addend, *bias, *aux;
  const void* out;
  int64_t left_row, left_col, right_row, right_col, out_row, out_col;
  int64_t rows, cols, inner;
  bool out_is_f32, apply_gelu, apply_gelu_grad;
  float* errors;
};

inline __device__ double gelu(double v) {
  return 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

// One thread block per element: |out - exact| relative to the typical size of the sum.
static __global__ void check_sample(CheckArgs a) {
  const int64_t row = hash(blockIdx.x * 2 + 1) % a.rows, col = hash(blockIdx.x * 2 + 2) % a.cols;
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < a.inner; i += blockDim.x) {
    const double t = double(__bfloat162float(a.left[row * a.left_row + i * a.left_col])) *
                     double(__bfloat162float(a.right[i * a.right_row + col * a.right_col]));
    sum += t, squares += t * t;
  }
  __shared__ double sums[256], squared[256];
  sums[threadIdx.x] = sum, squared[threadIdx.x] = squares;
  __syncthreads();
  for (int half = 128; half; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      squared[threadIdx.x] += squared[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x) return;
  const int64_t at = row * a.out_row + col * a.out_col;
  double exact = sums[0], size = sqrt(squared[0]);
  if (a.addend) exact += double(__bfloat162float(a.addend[at])), size += 1;
  if (a.bias) exact += double(__bfloat162float(a.bias[a.out_row == 1 ? row : col])), size += 1;
  if (a.apply_gelu) exact = gelu(exact);
  if (a.apply_gelu_grad) {
    const double v = double(__bfloat162float(a.aux[at])), e = 1e-5;
    exact *= (gelu(v + e) - gelu(v - e)) / (2 * e);
  }
  const double actual = a.out_is_f32 ? double(static_cast<const float*>(a.out)[at])
                                     : double(__bfloat162float(static_cast<const bf16*>(a.out)[at]));
  const float error = float(fabs(actual - exact) / size);
  a.errors[blockIdx.x] = isfinite(error) ? error : 1e30f;
}

constexpr int kSamples = 256;
// bf16 has 8 significant bits: rounding of a sum of four times its typical size is 4 * 2^-9 = 0.008; split-K
// partial sums in bf16 add a few such errors. A wrong layout gives errors of order 1.
constexpr double kErrorLimit = 0.05;

inline double sampled_error(const Gemm& p, const Memory& mem) {
  const bool has_gelu = p.epilogue & CUBLASLT_EPILOGUE_GELU, has_bias = p.epilogue & CUBLASLT_EPILOGUE_BIAS;
  const bool has_gelu_grad = (p.epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;
  CheckArgs a{static_cast<const bf16*>(p.left.data),
              static_cast<const bf16*>(p.right.data),
              static_cast<const bf16*>(p.addend),
              has_bias ? p.bias : nullptr,
              p.aux,
              p.out.data,
              p.left.row_stride,
              p.left.col_stride,
              p.right.row_stride,
              p.right.col_stride,
              p.out.row_stride,
              p.out.col_stride,
              p.rows,
              p.cols,
              p.inner,
              p.out_is_f32,
              has_gelu,
              has_gelu_grad,
              mem.errors};
  check_sample<<<kSamples, 256>>>(a);
  std::vector<float> errors(kSamples);
  cuda_ok(cudaMemcpy(errors.data(), mem.errors, kSamples * sizeof(float), cudaMemcpyDeviceToHost), "check");
  return *std::max_element(errors.begin(), errors.end());
}
