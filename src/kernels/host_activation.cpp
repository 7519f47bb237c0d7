// Activation functions on CPUs, plain and gated, with their gradients, in one pass each.
//
// ATen's gelu is a third faster than our exact GELU on aarch64, but its out variant writes wrong values into
// strided tensors.
#include "kernels/host.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

// The function and its derivative at x. The compiler removes the value that a loop does not use.
template <typename Number>
struct ValueAndDerivative {
  Number value, derivative;
};

template <typename Number>
struct Gelu {
  [[gnu::always_inline]] static ValueAndDerivative<Number> at(Number x) {
    const Normal<Number> normal = normal_distribution(x);
    return {x * normal.cumulative, normal.cumulative + x * normal.density};
  }
};

// Because (1 + tanh u) / 2 is the logistic function of 2u, one exponential replaces the tanh.
template <typename Number>
struct GeluTanh {
  [[gnu::always_inline]] static ValueAndDerivative<Number> at(Number x) {
    constexpr auto kFactor = static_cast<Number>(1.5957691216057307118),
                   kCubic = static_cast<Number>(0.044715);
    const Number cubic_term = kCubic * x * x;
    const Number logistic = 1 / (1 + exponential(-kFactor * x * (1 + cubic_term)));
    return {x * logistic, logistic + x * logistic * (1 - logistic) * kFactor * (1 + 3 * cubic_term)};
  }
};

template <typename Number>
struct Silu {
  [[gnu::always_inline]] static ValueAndDerivative<Number> at(Number x) {
    const Number logistic = 1 / (1 + exponential(-x));
    return {x * logistic, logistic * (1 + x * (1 - logistic))};
  }
};

template <typename Number>
struct Relu {
  [[gnu::always_inline]] static ValueAndDerivative<Number> at(Number x) {
    return {x < 0 ? 0 : x, x > 0 ? Number{1} : Number{0}};
  }
};

// Calls visit(Function{}) with the function of this kind.
template <typename Number, typename Visit>
void with_function(Activation kind, Visit visit) {
  switch (kind) {
    case Activation::gelu:
      return visit(Gelu<Number>{});
    case Activation::gelu_tanh:
      return visit(GeluTanh<Number>{});
    case Activation::silu:
      return visit(Silu<Number>{});
    case Activation::relu:
      return visit(Relu<Number>{});
  }
}

template <typename Function, typename T>
void forward_row(const T* x, const T* gate, std::int64_t width, T* y) {
  if (gate == nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) store(y[j], Function::at(load(x[j])).value);
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) store(y[j], Function::at(load(gate[j])).value * load(x[j]));
  }
}

template <typename Function, typename T>
void backward_row(const T* dy, const T* x, const T* gate, std::int64_t width, T* dx, T* d_gate) {
  if (gate == nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) store(dx[j], load(dy[j]) * Function::at(load(x[j])).derivative);
    return;
  }
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    const auto upstream = load(dy[j]);
    const auto result = Function::at(load(gate[j]));
    const auto gate_gradient = upstream * load(x[j]) * result.derivative;
    store(dx[j], upstream * result.value);
    store(d_gate[j], gate_gradient);
  }
}

}  // namespace

void HostKernels::activation(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                             at::Tensor& y) const {
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<T> from(x), gates(gate), to(y);
    with_function<Wide<T>>(kind, [&]<typename Function>(Function) {
      for_each_row(from.num_rows(), from.width, [&](std::int64_t r) {
        forward_row<Function>(from.row(r), gates.data == nullptr ? nullptr : gates.row(r), from.width,
                              to.row(r));
      });
    });
  });
}

void HostKernels::activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x,
                                      const at::Tensor& gate, at::Tensor& dx, at::Tensor& d_gate) const {
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<T> upstream(dy), from(x), gates(gate), to(dx), to_gate(d_gate);
    with_function<Wide<T>>(kind, [&]<typename Function>(Function) {
      for_each_row(from.num_rows(), from.width, [&](std::int64_t r) {
        const bool is_gated = gates.data != nullptr;
        backward_row<Function>(upstream.row(r), from.row(r), is_gated ? gates.row(r) : nullptr, from.width,
                               to.row(r), is_gated ? to_gate.row(r) : nullptr);
      });
    });
  });
}

}  // namespace optimus
