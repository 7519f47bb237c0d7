// Trains a small GPT-2 on a text file with the library's one call.
//
//   example_train FILE [RUN_FOLDER [DEVICES]]
#include "optimus/train.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: example_train FILE [RUN_FOLDER [DEVICES]]\n");
    return 2;
  }
  optimus::TrainOptions options{.tokenizer = "bytes", .steps = 20, .batch = 4, .seq = 64};
  options.more = {{"layers", "2"}, {"hidden", "64"}, {"heads", "2"}, {"max-positions", "64"}};
  if (argc > 2) options.run = argv[2];
  if (argc > 3) options.devices = std::atoi(argv[3]);  // workers; the learned result is the same
  try {
    const optimus::TrainResult result = optimus::train("gpt2", argv[1], options);
    std::printf("loss %.4f after %lld steps, in %s\n", result.loss, static_cast<long long>(result.steps),
                result.run.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "example_train: %s\n", error.what());
    return 1;
  }
}
