// Checks and times the attention kernels with keyed dropout, without libtorch: output, logsumexp and
// gradients against a reference in fp64 on the CPU, whether a second run gives the same bits, and the time of
// a layer's forward and backward pass.
//
//   nvcc -std=c++20 -O3 -Isrc -Xcompiler -fopenmp -gencode=arch=compute_90a,code=sm_90a
//        bench/gpu/attention_dropout_bench.cu src/kernels/cuda_attention_*.cu -o attention_dropout_bench
//   attention_dropout_bench [--no-check] [--no-time] [--small]     --small: for compute-sanitizer
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/attention_dropout.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_math.cuh"

using namespace optimus;
using namespace optimus::cuda;

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Case {
  std::int64_t sequences, length, heads, kv_heads, head_dim;
  bool is_causal;
  double rate;
};

// An array on the device and on the host.
template <typename T>
struct Array {
  std::vector<T> host;
  T* device = nullptr;

  explicit Array(std::size_t size) : host(size) { check(cudaMalloc(&device, size * sizeof(T)), "malloc"); }
  ~Array() { cudaFree(device); }
  Array(const Array&) = delete;
  void upload() {
    check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  void download() {
    check(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost), "download");
  }
  void poison() { check(cudaMemset(device, 0xff, host.size() * sizeof(T)), "poison"); }
};

template <typename T>
void fill_random(Array<T>& array, unsigned seed) {
  // Independent numbers from a hash, in parallel: sums of four uniform numbers, of variance 1.
#pragma omp parallel for
  for (std::size_t i = 0; i < array.host.size(); ++i) {
    const std::uint64_t bits = mixed_bits(mixed_bits(seed) + i);
    double sum = 0;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<double>(bits >> (16 * part) & 0xffff) / 65536 - 0.5;
    array.host[i] = T(static_cast<float>(sum * std::sqrt(3.0)));
  }
  array.upload();
}

// The tensors of one call; q, k and v are column ranges of one buffer.
template <typename T>
struct Call {
  Case at;
  std::int64_t rows, width, columns;
  Array<T> qkv, gradients, dout, out;
  Array<float> logsumexp, workspace;
  Array<std::uint64_t> keys;
  FusedAttentionTask task;

  explicit Call(const Case& which)
      : at(which),
        rows(at.sequences * at.length),
        width(at.heads * at.head_dim),
        columns((at.heads + 2 * at.kv_heads) * at.head_dim),
        qkv(static_cast<std::size_t>(rows * columns)),
        gradients(qkv.host.size()),
        dout(static_cast<std::size_t>(rows * width)),
        out(dout.host.size()),
        logsumexp(static_cast<std::size_t>(rows * at.heads)),
        workspace(2 * logsumexp.host.size()),
        keys(static_cast<std::size_t>(at.sequences)) {
    fill_random(qkv, 1), fill_random(dout, 2);
    for (std::size_t i = 0; i < keys.host.size(); ++i) keys.host[i] = derived_key(77, 100 + 17 * i);
    keys.upload();
    task.element = std::is_same_v<T, __half> ? Element::fp16 : Element::bf16;
    task.is_causal = at.is_causal, task.length = static_cast<int>(at.length);
    task.heads = static_cast<int>(at.heads), task.kv_heads = static_cast<int>(at.kv_heads);
    task.head_dim = static_cast<int>(at.head_dim), task.sequences = at.sequences;
    task.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(at.head_dim)));
    task.q = heads(qkv, 0), task.k = heads(qkv, 1), task.v = heads(qkv, 2);
    task.dq = heads(gradients, 0), task.dk = heads(gradients, 1), task.dv = heads(gradients, 2);
    task.out = {out.device, width, at.head_dim}, task.dout = {dout.device, width, at.head_dim};
    task.logsumexp = logsumexp.device, task.workspace = workspace.device;
    task.threshold = at.rate > 0 ? dropout_threshold(at.rate) : 0;
    task.first_head = 3, task.sample_keys = keys.device;
  }
  std::int64_t offset(int which) const {
    return which == 0 ? 0 : (at.heads + (which - 1) * at.kv_heads) * at.head_dim;
  }
  HeadRows heads(Array<T>& buffer, int which) const {
    return {buffer.device + offset(which), columns, at.head_dim};
  }
  void run() {
    fused_attention_forward({}, task);
    fused_attention_backward({}, task);
    check(cudaGetLastError(), "launch");
    check(cudaDeviceSynchronize(), "run");
  }
};

// The exact result of the query heads of one key head, in fp64.
template <typename T>
struct Reference {
  const Call<T>& call;
  std::int64_t length, dim, sequence, kv_head;
  std::vector<double> dk, dv;
  std::vector<double> out, dq;  // [group][length][dim]
  std::vector<double> logsumexp;

  Reference(const Call<T>& of, std::int64_t sequence, std::int64_t kv_head)
      : call(of), length(of.at.length), dim(of.at.head_dim), sequence(sequence), kv_head(kv_head) {
    const std::int64_t group = of.at.heads / of.at.kv_heads;
    dk.assign(length * dim, 0), dv = dk;
    out.assign(group * length * dim, 0), dq = out, logsumexp.assign(group * length, 0);
    for (std::int64_t member = 0; member < group; ++member) add_head(member, kv_head * group + member);
  }
  std::vector<double> matrix(const Array<T>& from, std::int64_t columns, std::int64_t first) const {
    std::vector<double> result(length * dim);
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t d = 0; d < dim; ++d)
        result[i * dim + d] = static_cast<float>(from.host[(sequence * length + i) * columns + first + d]);
    return result;
  }
  static double dot(const double* a, const double* b, std::int64_t count) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
  }
  void add_head(std::int64_t member, std::int64_t head) {
    const auto q = matrix(call.qkv, call.columns, call.offset(0) + head * dim),
               k = matrix(call.qkv, call.columns, call.offset(1) + kv_head * dim),
               v = matrix(call.qkv, call.columns, call.offset(2) + kv_head * dim),
               dout = matrix(call.dout, call.width, head * dim);
    const std::uint64_t key = derived_key(call.keys.host[sequence], call.task.first_head + head);
    const double factor = call.task.threshold == 0 ? 1 : dropout_scale(call.task.threshold);
    std::vector<double> p(length), mask(length), ds(length);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t end = call.at.is_causal ? i + 1 : length;
      double largest = -1e300, total = 0, delta = 0;
      for (std::int64_t j = 0; j < end; ++j)
        p[j] = dot(&q[i * dim], &k[j * dim], dim) * call.task.scale, largest = std::max(largest, p[j]);
      for (std::int64_t j = 0; j < end; ++j) total += p[j] = std::exp(p[j] - largest);
      logsumexp[member * length + i] = largest + std::log(total);
      double* const to = &out[(member * length + i) * dim];
      for (std::int64_t j = 0; j < end; ++j) {
        const DropoutPlace place = dropout_place(i, j);
        const std::uint32_t word =
            dropout_words(key, place.tile_row, place.tile_column, place.lane).at[place.word];
        mask[j] = (word >> (8 * place.byte) & 255) < call.task.threshold ? 0 : factor;
        p[j] /= total;
        for (std::int64_t d = 0; d < dim; ++d) to[d] += p[j] * mask[j] * v[j * dim + d];
      }
      delta = dot(to, &dout[i * dim], dim);
      for (std::int64_t j = 0; j < end; ++j) {
        ds[j] = p[j] * (mask[j] * dot(&dout[i * dim], &v[j * dim], dim) - delta) * call.task.scale;
        for (std::int64_t d = 0; d < dim; ++d) {
          dq[(member * length + i) * dim + d] += ds[j] * k[j * dim + d];
          dk[j * dim + d] += ds[j] * q[i * dim + d];
          dv[j * dim + d] += p[j] * mask[j] * dout[i * dim + d];
        }
      }
    }
  }
};

struct Error {
  double difference = 0, largest = 0, squares = 0, reference_squares = 0;
  void add(double got, double expected) {
    const double error = std::isnan(got) ? INFINITY : std::abs(got - expected);
    difference = std::max(difference, error), largest = std::max(largest, std::abs(expected));
    squares += error * error, reference_squares += expected * expected;
  }
  void merge(const Error& other) {
    difference = std::max(difference, other.difference), largest = std::max(largest, other.largest);
    squares += other.squares, reference_squares += other.reference_squares;
  }
  // Numbers that should be zero (gradients of a single score) are compared with 1.
  double maximum() const { return difference / (largest > 1e-6 ? largest : 1); }
  double norm() const { return std::sqrt(squares / (reference_squares > 0 ? reference_squares : 1)); }
};

template <typename T>
bool check_case(const Case& at, std::int64_t max_heads) {
  Call<T> call(at);
  call.out.poison(), call.gradients.poison(), call.logsumexp.poison(), call.workspace.poison();
  call.run();
  call.out.download(), call.gradients.download(), call.logsumexp.download();
  const std::vector<T> first_out = call.out.host, first_gradients = call.gradients.host;
  call.run();
  call.out.download(), call.gradients.download();
  const bool is_same =
      std::memcmp(first_out.data(), call.out.host.data(), first_out.size() * sizeof(T)) == 0 &&
      std::memcmp(first_gradients.data(), call.gradients.host.data(), first_gradients.size() * sizeof(T)) ==
          0;
  Error errors[5];
  const std::int64_t total = at.sequences * at.kv_heads, count = std::min(total, max_heads);
  const std::int64_t group = at.heads / at.kv_heads, length = at.length, dim = at.head_dim;
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t n = 0; n < count; ++n) {
    const std::int64_t which = count == total ? n : n == 0 ? total - 1 : n * (total / count);
    const std::int64_t sequence = which / at.kv_heads, kv_head = which % at.kv_heads;
    const Reference<T> expected(call, sequence, kv_head);
    Error own[5];
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t row = sequence * length + i;
      for (std::int64_t member = 0; member < group; ++member) {
        const std::int64_t head = kv_head * group + member;
        own[1].add(call.logsumexp.host[(sequence * at.heads + head) * length + i],
                   expected.logsumexp[member * length + i]);
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t from = (member * length + i) * dim + d;
          own[0].add(static_cast<float>(call.out.host[row * call.width + head * dim + d]),
                     expected.out[from]);
          own[2].add(static_cast<float>(call.gradients.host[row * call.columns + head * dim + d]),
                     expected.dq[from]);
        }
      }
      for (std::int64_t d = 0; d < dim; ++d) {
        const T* const of_row = call.gradients.host.data() + row * call.columns + kv_head * dim + d;
        own[3].add(static_cast<float>(of_row[call.offset(1)]), expected.dk[i * dim + d]);
        own[4].add(static_cast<float>(of_row[call.offset(2)]), expected.dv[i * dim + d]);
      }
    }
#pragma omp critical
    for (int i = 0; i < 5; ++i) errors[i].merge(own[i]);
  }
  // Probabilities and their gradients are rounded to 16 bits in the kernel too (tests/kernels).
  const double limit = std::is_same_v<T, __half> ? std::ldexp(1, -9) : std::ldexp(1, -6);
  bool is_good = is_same && errors[1].maximum() < 1e-4;
  for (const Error& error : errors) is_good = is_good && error.maximum() < limit;
  std::printf(
      "%s %ld x %ld, %ld/%ld heads of %ld, %s, rate %.2f: max/largest out %.1e lse %.1e dq %.1e dk %.1e dv "
      "%.1e; norm out %.1e dq %.1e dk %.1e dv %.1e; repeat %s  %s\n",
      std::is_same_v<T, __half> ? "fp16" : "bf16", at.sequences, at.length, at.heads, at.kv_heads,
      at.head_dim, at.is_causal ? "causal" : "full", at.rate, errors[0].maximum(), errors[1].maximum(),
      errors[2].maximum(), errors[3].maximum(), errors[4].maximum(), errors[0].norm(), errors[2].norm(),
      errors[3].norm(), errors[4].norm(), is_same ? "equal" : "DIFFERS", is_good ? "ok" : "FAIL");
  std::fflush(stdout);
  return is_good;
}

// Median milliseconds of calls.
double time_of(const std::function<void()>& run) {
  std::vector<cudaEvent_t> events(21);
  for (cudaEvent_t& event : events) cudaEventCreate(&event);
  for (int i = 0; i < 3; ++i) run();
  for (std::size_t i = 0; i < events.size(); ++i) {
    cudaEventRecord(events[i]);
    if (i + 1 < events.size()) run();
  }
  check(cudaDeviceSynchronize(), "time");
  std::vector<float> times;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    times.push_back(0);
    cudaEventElapsedTime(&times.back(), events[i], events[i + 1]);
  }
  for (cudaEvent_t& event : events) cudaEventDestroy(event);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void time_case(const Case& at) {
  Call<__nv_bfloat16> call(at);
  call.run();
  const double forward = time_of([&] { fused_attention_forward({}, call.task); }),
               backward = time_of([&] { fused_attention_backward({}, call.task); });
  const double flops = 4.0 * static_cast<double>(at.sequences * at.heads * at.head_dim) * at.length *
                       at.length / (at.is_causal ? 2 : 1);
  std::printf("%ld x %ld, %ld/%ld heads of %ld: forward %.3f ms (%.0f TFLOP/s), backward %.3f ms (%.0f)\n",
              at.sequences, at.length, at.heads, at.kv_heads, at.head_dim, forward, flops / forward * 1e-9,
              backward, 2.5 * flops / backward * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** values) {
  bool checks = true, times = true, is_small = false;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(values[i], "--no-check") == 0) checks = false;
    if (std::strcmp(values[i], "--no-time") == 0) times = false;
    if (std::strcmp(values[i], "--small") == 0) is_small = true, times = false;
  }
  bool is_good = true;
  if (checks) {
    for (const double rate : {0.1, 0.5, 0.0})
      for (const std::int64_t dim : {64, 128}) {
        is_good &= check_case<__nv_bfloat16>({2, 192, 4, 4, dim, true, rate}, 8);
        is_good &= check_case<__nv_bfloat16>({2, 320, 6, 2, dim, false, rate}, 4);
        is_good &= check_case<__half>({2, 77, 4, 2, dim, true, rate}, 4);
      }
    for (const std::int64_t length : {1, 15, 33, 64, 65, 127, 129, 200, 257})
      for (const bool is_causal : {true, false})
        is_good &= check_case<__half>({1, length, 2, 1, length % 2 == 0 ? 128 : 64, is_causal, 0.1}, 2);
    if (!is_small) is_good &= check_case<__nv_bfloat16>({64, 1024, 12, 12, 64, true, 0.1}, 8);
    if (!is_small) is_good &= check_case<__nv_bfloat16>({2, 2048, 8, 2, 64, true, 0.1}, 4);
    std::printf("%s\n", is_good ? "all checks passed" : "CHECKS FAILED");
  }
  if (times)
    for (const Case& at : {Case{64, 1024, 12, 12, 64, true, 0.1}, Case{16, 1024, 25, 25, 64, true, 0.1},
                           Case{8, 2048, 32, 8, 64, true, 0.1}, Case{4, 4096, 32, 8, 128, true, 0.1}})
      time_case(at);
  return is_good ? 0 : 1;
}
