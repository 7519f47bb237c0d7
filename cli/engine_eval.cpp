// Part of `optimus-engine`: implements optimus eval.
#include <fmt/format.h>

#include "cli/training.h"
#include "inference/evaluate.h"

namespace optimus {

int run_evaluation(const EvalOptions& options, Console& console) {
  const EvalResult result = evaluate(options, console);
  console.result({{"loss", result.loss}, {"perplexity", result.perplexity}, {"tokens", result.num_tokens}},
                 fmt::format("loss {:.6f}, perplexity {:.4f}, {} tokens\n", result.loss, result.perplexity,
                             with_commas(result.num_tokens)));
  return 0;
}

}  // namespace optimus
