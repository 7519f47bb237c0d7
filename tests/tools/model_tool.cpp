// What tests/parity/model_parity.py compares with transformers:
//   model_tool list | preset NAME | random SEED | random-mixture SEED | config FILE
// prints names of presets, or one model: its config.json, its logical tensors, its number of parameters.
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/open.h"
#include "model/presets.h"
#include "model/random_spec.h"
#include "model/tensors.h"

namespace optimus {
namespace {

OrderedJson shape_json(const Shape& shape) {
  OrderedJson result = OrderedJson::array();
  for (int dim = 0; dim < shape.num_dims; ++dim) result.push_back(shape[dim]);
  return result;
}

OrderedJson tensor_json(const LogicalTensor& tensor) {
  OrderedJson result;
  result["name"] = tensor.name;
  result["shape"] = shape_json(tensor.shape);
  result["block"] = tensor.block;
  result["init"] = tensor.init.kind == InitKind::normal ? "normal"
                   : tensor.init.kind == InitKind::ones ? "ones"
                                                        : "zeros";
  result["deviation"] = tensor.init.deviation;
  result["decay"] = tensor.has_weight_decay;
  result["hf"] = {{"name", tensor.hf.name},
                  {"transposed", tensor.hf.is_transposed},
                  {"offset", tensor.hf.offset},
                  {"pieces", tensor.hf.pieces},
                  {"shape", shape_json(tensor.hf.shape)}};
  return result;
}

void print_model(const ModelSpec& spec) {
  OrderedJson result;
  result["config"] = hf_config_from_spec(spec);
  result["parameters"] = num_parameters(spec);
  result["tensors"] = OrderedJson::array();
  for (const LogicalTensor& tensor : logical_tensors(spec)) result["tensors"].push_back(tensor_json(tensor));
  fmt::print("{}\n", result.dump());
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  if (command == "list") {
    fmt::print("{}\n", Json(preset_names()).dump());
  } else if (command == "preset") {
    print_model(open_model(argument));
  } else if (command == "random") {
    print_model(random_spec(std::strtoull(argument.c_str(), nullptr, 10)));
  } else if (command == "random-mixture") {
    print_model(random_mixture(std::strtoull(argument.c_str(), nullptr, 10)));
  } else if (command == "config") {
    print_model(spec_from_hf_config(read_json(argument), argument));
  } else {
    fmt::print(stderr,
               "usage: model_tool list | preset NAME | random SEED | random-mixture SEED | config FILE\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    return optimus::run(argc, argv);
  } catch (const optimus::ReportedError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
