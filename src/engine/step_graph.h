// Records the GPU work of a step once as a CUDA graph and replays it, which avoids kernel launches from the
// host. On other devices, and while there is no graph, the work runs directly.
//
// A graph keeps its addresses and kernel arguments. Tensors must therefore be at the same addresses each
// time, and numbers that change must be on the device (kernels/step_scalars.h). Read next: engine.cpp,
// train_step.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace optimus {

class StepGraph {
 public:
  explicit StepGraph(c10::Device device);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Runs `body`, which must only start kernels on the current stream and never wait. `kernel_arguments` are
  // the numbers that the recorded kernels receive as arguments. When they differ from those of the previous
  // call, `body` runs directly twice, because libraries then select their kernels, and is recorded in the
  // next call.
  void run(const std::vector<double>& kernel_arguments, const std::function<void()>& body);
  // Discards the graph because tensors have moved.
  void forget();
  bool is_recorded() const;
  // Returns why the work could not be recorded. Empty if it was recorded or no attempt was made.
  const std::string& failure() const { return failure_; }

 private:
  void record(const std::function<void()>& body);

  struct Recording;  // at::cuda::CUDAGraph
  const c10::Device device_;
  std::unique_ptr<Recording> recording_;
  std::vector<double> kernel_arguments_;
  int num_runs_ = 0;  // number of runs with these arguments
  std::string failure_;
};

}  // namespace optimus
