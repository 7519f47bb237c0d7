// The products of one linear layer in 8 bits: operands are measured, scaled and rounded on their way into the products that the device
// has anyway.
//
// This is what fp8 means here. Numbers of 8 bits and powers of two are numbers of 16 bits, too: multiplying the rounded operands in
// bf16 with sums in fp32 gives what 8-bit tensor cores give, up to the order of sums; and in fp64 plans can be compared to rounding.
// Faster ones are compared with it.
#pragma once

#include <memory>

#include "engine/fp8_scales.h"
#include "engine/products.h"
#include "kernels/kernels.h"

namespace optimus {

// The tensor's values as 8 bits hold them (kernels/fp8.h), scaled back, in the tensor's type. scale and inverse: one fp32 element each.
at::Tensor rounded_to_fp8(const at::Tensor& tensor, Fp8Operand operand, const at::Tensor& scale,
                          const at::Tensor& inverse);

// What they are made of; all must outlive them.
struct Fp8Tools {
  Products& products;  // of the element type
  const Kernels& kernels;
  Fp8Scales& scales;
};
// The fastest there are: on CUDA by cuBLASLt (fp8_products_cuda.cpp).
std::unique_ptr<Products> make_fp8_products(const Fp8Tools& tools, int layer, LayerProduct product);
// By way of rounded operands, on every device: what the others are compared with.
std::unique_ptr<Products> make_rounded_products(const Fp8Tools& tools, int layer, LayerProduct product);
#ifdef OPTIMUS_CUDA
std::unique_ptr<Products> make_cuda_fp8_products(const Fp8Tools& tools, int layer, LayerProduct product);
#endif

}  // namespace optimus
