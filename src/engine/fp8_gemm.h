// The GEMMs of one linear layer in fp8. Operands are measured, scaled and rounded before they enter the
// device's regular GEMMs.
//
// This is the reference definition of fp8 in this project. A product of an fp8 value and a power of two is
// exact in 16 bits. Multiplying the rounded operands in bf16 with fp32 accumulation therefore gives the
// results of fp8 tensor cores up to the order of summation. With fp64 GEMMs, plans can be compared up to
// rounding. Faster implementations are tested against this reference.
#pragma once

#include <memory>

#include "engine/fp8_scales.h"
#include "engine/gemm.h"
#include "kernels/kernels.h"

namespace optimus {

// Returns `tensor` multiplied by `scale`, rounded to fp8 (kernels/fp8.h) and multiplied by `inverse`, in
// its element type. `scale` and `inverse` have one fp32 element each.
at::Tensor rounded_to_fp8(const at::Tensor& tensor, Fp8Operand operand, const at::Tensor& scale,
                          const at::Tensor& inverse);

// Dependencies of fp8 GEMMs. All of them must outlive the GEMMs.
struct Fp8GemmServices {
  Gemm& gemm;  // GEMMs in the element type
  const Kernels& kernels;
  Fp8Scales& scales;
};
// Returns the fastest available implementation: cuBLASLt on CUDA (fp8_gemm_cuda.cpp), otherwise
// make_rounded_gemm.
std::unique_ptr<Gemm> make_fp8_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm);
// Returns the reference implementation, which works on any device. It rounds the operands to fp8 and
// multiplies them in the element type.
std::unique_ptr<Gemm> make_rounded_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm);
#ifdef OPTIMUS_CUDA
std::unique_ptr<Gemm> make_cuda_fp8_gemm(const Fp8GemmServices& services, int layer, LayerGemm layer_gemm);
#endif

}  // namespace optimus
