// The device of the engine's tests: the CPU, or the one named by OPTIMUS_TEST_DEVICE ("cuda"); and the peak
// of memory allocated there during the lifetime of a MemoryWatch.
#pragma once

#include <ATen/Context.h>

#include <cstdlib>

#include "engine/device.h"
#include "engine/tracking_allocator.h"
#ifdef OPTIMUS_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace optimus {

inline at::Device test_device() {
  const char* const name = std::getenv("OPTIMUS_TEST_DEVICE");
  if (name == nullptr || *name == 0) return at::Device(at::kCPU);
  // For comparisons of modules: without TF32, and deterministic.
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  return parse_device(name);
}

class MemoryWatch {
 public:
  MemoryWatch() {
#ifdef OPTIMUS_CUDA
    if (!device_.is_cuda()) return;
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
    before_ = stats().current;
#endif
  }
  std::int64_t peak() const {
#ifdef OPTIMUS_CUDA
    if (device_.is_cuda()) return stats().peak - before_;
#endif
    return host_.peak();
  }
  // The largest single allocation since the last call; not available on CUDA (0).
  std::int64_t take_largest() { return device_.is_cuda() ? 0 : host_.take_largest(); }

 private:
#ifdef OPTIMUS_CUDA
  c10::CachingAllocator::Stat stats() const {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index()).allocated_bytes[0];
  }
#endif
  at::Device device_ = test_device();
  TrackingAllocator host_;
  std::int64_t before_ = 0;
};

}  // namespace optimus
