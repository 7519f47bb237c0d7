// A model of three custom blocks of different widths; the middle one has no parameters.
#pragma once

#include "model/spec.h"

namespace optimus {

inline ModelSpec custom_model() {
  ModelSpec spec;
  spec.name = "custom", spec.is_tied = false, spec.max_positions = 1;
  spec.custom.resize(3);
  CustomBlock &a = spec.custom[0], &b = spec.custom[1], &c = spec.custom[2];
  a.name = "a", a.inputs = 30, a.outputs = 40, a.forward_flops = 1000;
  a.tensors = {{"a.weight", {4, 3, 2, 2}, true}, {"a.bias", {4}, false}};
  a.graph = {0, 1024}, a.graph_work = {512, 256};
  b.name = "b", b.inputs = 40, b.outputs = 20, b.graph = {0, 2048}, b.graph_work = {0, 256};
  c.name = "c", c.inputs = 20, c.forward_flops = 400;
  c.tensors = {{"c.weight", {10, 20}, true}};
  c.graph = {0, 512}, c.graph_work = {1024, 0};
  return spec;
}

}  // namespace optimus
