// Trains as one rank of a job: torchrun, Slurm, MPI or Kubernetes starts one process of this program per
// rank.
//
//   torchrun --nproc-per-node 2 --no-python build/rank FILE RUN_FOLDER
#include <optimus/train.h>

#include <cstdio>

int main(int, char** arguments) {
  optimus::TrainOptions options{.tokenizer = "bytes", .run = arguments[2], .steps = 6, .batch = 4, .seq = 16};
  options.precision = "fp64", options.device = "cpu";
  options.more = {{"layers", "2"}, {"hidden", "16"}, {"heads", "2"}, {"max-positions", "16"}};
  const optimus::TrainResult result = optimus::train("gpt2", arguments[1], options);
  if (result.is_reporting)
    std::printf("%lld steps, loss %.12f\n", static_cast<long long>(result.steps), result.loss);
}
