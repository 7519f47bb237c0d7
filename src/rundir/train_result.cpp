// Implements train_result.h.
#include "rundir/train_result.h"

#include <array>
#include <limits>

namespace optimus {
namespace {

constexpr std::array<const char*, 3> kEndNames = {"finished", "stopped", "left"};

TrainEnd parse_end(const JsonView& view) {
  for (std::size_t i = 0; i < kEndNames.size(); ++i)
    if (view.text() == kEndNames[i]) return static_cast<TrainEnd>(i);
  view.refuse("finished, stopped or left");
}

}  // namespace

Json serialize(const TrainResult& result) {
  return {{"end", kEndNames[static_cast<std::size_t>(result.end)]},
          {"run", result.run},
          {"checkpoint", result.checkpoint},
          {"steps", result.steps},
          {"loss", result.loss},
          {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json()},
          {"tokens_per_second", result.tokens_per_second},
          {"sample", result.sample}};
}

TrainResult parse_train_result(const Json& json) {
  const JsonView view(json, "the result of rank 0");
  TrainResult result{.end = parse_end(view.at("end"))};
  result.run = view.at("run").text(), result.checkpoint = view.at("checkpoint").text();
  result.steps = view.at("steps").integer();
  result.loss = view.number_or("loss", std::numeric_limits<double>::quiet_NaN());  // NaN is null in JSON
  if (const auto loss = view.find("validation_loss")) result.validation_loss = loss->number();
  result.tokens_per_second = view.number_or("tokens_per_second", 0);
  result.sample = view.at("sample").text();
  return result;
}

}  // namespace optimus
