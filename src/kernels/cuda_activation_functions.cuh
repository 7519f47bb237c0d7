// Activation functions on CUDA with their derivatives, shared by the kernels that apply them.
#pragma once

#include "kernels/cuda_math.cuh"

namespace optimus::cuda {

// The function and its derivative at x, as in host_activation.cpp. The compiler removes the value that a
// kernel does not use.
template <typename T>
struct ValueAndDerivative {
  Wide<T> value, derivative;
};

template <typename T>
struct Gelu {
  static __device__ __forceinline__ ValueAndDerivative<T> at(Wide<T> x) {
    using W = Wide<T>;
    constexpr W kRootHalf = static_cast<W>(0.70710678118654752440),
                kDensity = static_cast<W>(0.39894228040143267794);
    const W normal_cdf = static_cast<W>(0.5) * (1 + erf(x * kRootHalf));
    return {x * normal_cdf, normal_cdf + x * kDensity * exponential<T>(-static_cast<W>(0.5) * x * x)};
  }
};

// Because (1 + tanh u) / 2 is the logistic function of 2u, one exponential replaces the tanh.
template <typename T>
struct GeluTanh {
  static __device__ __forceinline__ ValueAndDerivative<T> at(Wide<T> x) {
    using W = Wide<T>;
    constexpr W kFactor = static_cast<W>(1.5957691216057307118), kCubic = static_cast<W>(0.044715);
    const W cubic_term = kCubic * x * x;
    const W logistic = inverse<T>(1 + exponential<T>(-kFactor * x * (1 + cubic_term)));
    return {x * logistic, logistic + x * logistic * (1 - logistic) * kFactor * (1 + 3 * cubic_term)};
  }
};

template <typename T>
struct Silu {
  static __device__ __forceinline__ ValueAndDerivative<T> at(Wide<T> x) {
    const Wide<T> logistic = inverse<T>(1 + exponential<T>(-x));
    return {x * logistic, logistic * (1 + x * (1 - logistic))};
  }
};

template <typename T>
struct Relu {
  static __device__ __forceinline__ ValueAndDerivative<T> at(Wide<T> x) {
    return {x < 0 ? Wide<T>(0) : x, x > 0 ? Wide<T>(1) : Wide<T>(0)};
  }
};

// Calls visit(Function{}) with the function of this kind.
template <typename T, typename Visit>
void with_function(Activation kind, Visit visit) {
  switch (kind) {
    case Activation::gelu:
      return visit(Gelu<T>{});
    case Activation::gelu_tanh:
      return visit(GeluTanh<T>{});
    case Activation::silu:
      return visit(Silu<T>{});
    case Activation::relu:
      return visit(Relu<T>{});
  }
}

}  // namespace optimus::cuda
