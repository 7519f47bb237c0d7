// Part of `optimus-engine`: implements optimus convert and optimus export, including the comparison of the
// logits before and after the conversion.
#include <fmt/format.h>

#include "cli/training.h"
#include "engine/device.h"
#include "inference/compare_logits.h"

namespace optimus {

int run_conversion(const ConvertOptions& options, Console& console) {
  if (options.threads < 0 || options.threads > 4096)
    throw UsageError("--threads: expected 0 to 4096, got {}", options.threads);
  set_num_threads(static_cast<int>(options.threads));
  RealFileSystem files;
  const ConvertedModel converted = convert(options, files, console);
  const LogitsComparison compared = compare_logits(open_trained_model(options.from, console),
                                                   open_trained_model(options.to.string(), console), console);
  if (compared.is_done && !compared.is_equal)
    throw UserError("{}: the logits differ from those of {}; do not use this model", options.to.string(),
                    options.from);
  OrderedJson json = to_json(options, converted);
  json["logits"] =
      compared.is_done ? OrderedJson{{"equal", true}, {"rounding", compared.rounding}} : OrderedJson();
  std::string output = text(options, converted);
  if (!compared.is_done)
    console.report(Warning{"the logits were not compared: " + compared.why_not});
  else if (compared.rounding == 0)
    output += "the logits of both models are equal\n";
  else
    output +=
        fmt::format("the logits match those of the rounded weights; rounding changed the logits by {:.1e}\n",
                    compared.rounding);
  console.result(json, output);
  return 0;
}

}  // namespace optimus
