// See step_graph.h.
#include "engine/step_graph.h"

#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace optimus {

#ifdef OPTIMUS_CUDA
struct StepGraph::Recording {
  at::cuda::CUDAGraph graph;
};
#else
struct StepGraph::Recording {};
#endif

StepGraph::StepGraph(c10::Device device) : device_(device) {}
StepGraph::~StepGraph() = default;

bool StepGraph::is_recorded() const { return recording_ != nullptr; }

void StepGraph::forget() {
  recording_.reset();
  num_runs_ = 0;
}

void StepGraph::run(const std::vector<double>& kernel_arguments, const std::function<void()>& body) {
  constexpr int kDirectRuns = 2;
  if (!device_.is_cuda() || !failure_.empty()) return body();
  if (kernel_arguments != kernel_arguments_) forget(), kernel_arguments_ = kernel_arguments;
  if (num_runs_++ < kDirectRuns) return body();
  if (recording_ == nullptr) record(body);
  if (recording_ == nullptr) return body();
#ifdef OPTIMUS_CUDA
  recording_->graph.replay();
#endif
}

// Recording does not execute the work. If it fails, the work can still run directly.
void StepGraph::record(const std::function<void()>& body) {
#ifdef OPTIMUS_CUDA
  auto recording = std::make_unique<Recording>();
  c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
  const c10::cuda::CUDAStreamGuard on_side_stream(c10::cuda::getStreamFromPool(false, device_.index()));
  try {
    recording->graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    body();
    recording->graph.capture_end();
    recording_ = std::move(recording);
  } catch (const std::exception& error) {
    failure_ = error.what();
    failure_ = failure_.substr(0, failure_.find('\n'));
    try {
      recording->graph.capture_end();
    } catch (const std::exception&) {  // ending a failed capture fails again
    }
    cudaGetLastError();
  }
#else
  (void)body;
#endif
}

}  // namespace optimus
