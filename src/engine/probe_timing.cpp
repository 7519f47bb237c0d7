// See probe_timing.h.
#include "engine/probe_timing.h"

#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#endif
#include <ATen/ops/cat.h>

#include <algorithm>
#include <chrono>

#include "engine/step_graph.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxViews = 128;
// In seconds. Long compared with the clock resolution and with a kernel launch.
constexpr double kMinSeconds = 2e-3;

double seconds_per_call(at::Device device, const std::function<void()>& call, int count) {
  wait_for(device);
  const auto begin_time = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  wait_for(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count() / count;
}

#ifdef OPTIMUS_CUDA
// Returns the median seconds of a call, measured with pairs of events. Each call is followed by a copy that
// takes about half of `call_seconds`, the approximate seconds of a call.
double seconds_between_copies(const at::Tensor& copy_buffer, const std::function<void()>& call,
                              double call_seconds) {
  // Bytes per second that a Hopper GPU reads and writes in a copy. On slower GPUs the copies take longer.
  constexpr double kCopyBytesPerSecond = 3.2e12;
  const auto elements = static_cast<std::int64_t>(call_seconds * 0.5 * kCopyBytesPerSecond / 2 /
                                                  static_cast<double>(copy_buffer.element_size()));
  const std::int64_t half = copy_buffer.numel() / 2, count = std::clamp<std::int64_t>(elements, 1, half);
  at::Tensor to = copy_buffer.narrow(0, half, count);
  const at::Tensor from = copy_buffer.narrow(0, 0, count);
  const int calls = static_cast<int>(std::clamp(4 * kMinSeconds / call_seconds, 3.0, 40.0));
  std::vector<at::cuda::CUDAEvent> begins(static_cast<std::size_t>(calls)), ends(begins.size());
  std::vector<double> values;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    begins[i] = at::cuda::CUDAEvent(cudaEventDefault), ends[i] = at::cuda::CUDAEvent(cudaEventDefault);
    begins[i].record();
    call();
    ends[i].record();
    to.copy_(from);
  }
  at::cuda::getCurrentCUDAStream().synchronize();
  for (std::size_t i = 0; i < begins.size(); ++i)
    values.push_back(static_cast<double>(begins[i].elapsed_time(ends[i])) * 1e-3);
  return median(std::move(values));
}
#endif

}  // namespace

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

at::Tensor OperandRing::next(std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns;
  while (count > buffer_.numel()) *this = OperandRing(at::cat({buffer_, buffer_}));
  if (next_index_ + count > buffer_.numel() || ++num_since_start_ > kMaxViews)
    next_index_ = 0, num_since_start_ = 0;
  if (views_.size() > 4 * kMaxViews) views_.clear();
  at::Tensor& view = views_[{next_index_, rows, columns}];
  if (!view.defined()) view = buffer_.narrow(0, next_index_, count).view({rows, columns});
  next_index_ += (count + 127) / 128 * 128;
  return view;
}

void wait_for(at::Device device) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) at::cuda::getCurrentCUDAStream(device.index()).synchronize();
#endif
  (void)device;
}

double seconds_of(at::Device device, const std::function<void()>& call) {
  call();
  const double call_seconds = seconds_per_call(device, call, 1);
  const int count = static_cast<int>(std::clamp(kMinSeconds / call_seconds, 1.0, 1000.0));
  std::vector<double> times;
  for (int i = 0; i < (call_seconds > 0.05 ? 2 : 5); ++i)
    times.push_back(seconds_per_call(device, call, count));
  return median(std::move(times));
}

double seconds_of_kernel(at::Device device, const std::function<void()>& call) {
  constexpr double kLongKernelSeconds = 200e-6;  // longer kernels hide the launch time
  call();
  if (!device.is_cuda() || seconds_per_call(device, call, 2) > kLongKernelSeconds)
    return seconds_of(device, call);
  constexpr int kCalls = 50, kWarmUpReplays = 3, kTimedReplays = 5;
  StepGraph recording(device);
  const auto replay = [&] {
    recording.run({}, [&] {
      for (int i = 0; i < kCalls; ++i) call();
    });
  };
  for (int i = 0; i < kWarmUpReplays; ++i) replay();
  if (!recording.is_recorded()) return seconds_of(device, call);
  std::vector<double> times;
  for (int i = 0; i < kTimedReplays; ++i) times.push_back(seconds_per_call(device, replay, 4) / kCalls);
  return median(std::move(times));
}

double seconds_of_gemm(at::Device device, const at::Tensor& copy_buffer, const std::function<void()>& call) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) {
    call();
    const double call_seconds = seconds_per_call(device, call, 2);
    if (call_seconds > 50e-6) return seconds_between_copies(copy_buffer, call, call_seconds);
  }
#endif
  (void)copy_buffer;
  return seconds_of_kernel(device, call);
}

}  // namespace optimus
