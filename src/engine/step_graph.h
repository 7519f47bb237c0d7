// A step's work on a GPU, recorded once as a CUDA graph and replayed: no launch by the host between two kernels. Elsewhere, and
// while there is nothing to replay, the work runs as it is.
//
// What is recorded keeps its addresses and its kernels' arguments: tensors must be the same ones each time, and numbers that
// change must be on the device (kernels/step_numbers.h). Read next: engine.cpp, train_step.
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

  // Does the work, which starts kernels on the current stream and waits for none. `fixed`: numbers that kernels get as arguments;
  // when they are not those of the call before, the work runs as it is twice (libraries look for their kernels), then it is
  // recorded.
  void run(const std::vector<double>& fixed, const std::function<void()>& work);
  // Tensors have moved.
  void forget();
  bool is_recorded() const;
  // Why the work could not be recorded; empty: it was, or nobody has tried.
  const std::string& failure() const { return failure_; }

 private:
  void record(const std::function<void()>& work);

  struct Recording;  // at::cuda::CUDAGraph
  const c10::Device device_;
  std::unique_ptr<Recording> recording_;
  std::vector<double> fixed_;
  int num_runs_ = 0;  // with these numbers
  std::string failure_;
};

}  // namespace optimus
