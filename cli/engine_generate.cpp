// Part of `optimus-engine`: implements optimus generate.
#include "cli/training.h"
#include "inference/generate_text.h"

namespace optimus {

int run_generation(const TextOptions& options, Console& console) {
  std::int64_t num_done = 0;
  const auto show = [&](const std::string& text) {
    if (console.wants_json)
      console.report(Progress{"generating", ++num_done, options.num_tokens, "tokens"});
    else
      console.stream(text);
    console.check_interrupted();
  };
  const GeneratedText result = generate_text(options, show, console);
  console.result({{"ids", result.ids}, {"text", result.text}, {"prompt_ids", result.prompt_ids}}, "\n");
  return 0;
}

}  // namespace optimus
