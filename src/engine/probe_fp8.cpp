// See probe_fp8.h.
#include "engine/probe_fp8.h"

#include <algorithm>

#include "engine/fp8_gemm.h"
#include "kernels/fp8.h"

namespace optimus {
namespace {

using Axis = std::vector<double>;

// Widths of the operands of memory-bound kernels, as in probe.cpp.
constexpr std::int64_t kNormWidth = 1024, kWidth = 4096;

class Fp8Probe {
 public:
  Fp8Probe(const Fp8ProbeContext& context, KernelTimes& times)
      : probe_context_(context), times_(times), scales_(single_layer_plan(), context.device) {
    scales_.set_history({{std::vector<float>(kFp8SlotsOfLayer, 2.5f)}});
    scales_.begin_step(/*is_training=*/true);
  }

  void run() {
    probe_casts();
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) probe_norm(kind);
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::relu})
      probe_activation(kind, false);
    probe_activation(Activation::silu, true);
    probe_gemms();
  }

 private:
  static Plan single_layer_plan() {
    Plan plan;
    plan.num_blocks = 3, plan.fp8.blocks = {1};
    return plan;
  }
  at::Tensor scale() const { return scales_.scale(0); }

  void measure_elementwise(const std::string& name, std::int64_t width,
                           const std::function<void(std::int64_t rows, std::int64_t width)>& call) {
    RateTable& table = times_.tables[name];
    table.axes = {{}};
    for (const double size : {1 << 18, 1 << 21, 1 << 24, 1 << 27}) {
      const std::int64_t rows = static_cast<std::int64_t>(size) / width;
      table.axes[0].push_back(size);
      table.rates.push_back(size / seconds_of_kernel(probe_context_.device, [&] { call(rows, width); }));
    }
  }

  // Returns an fp8 output in the memory of a 16-bit tensor, as Gemm::input_destination does.
  Fp8Output make_output(std::int64_t rows, std::int64_t width, bool has_transposed) {
    const std::int64_t count = rows * width;
    const at::Tensor bytes =
        probe_context_.outputs.next(rows, width).view({-1}).view(fp8_type(Fp8Operand::input));
    return {bytes.narrow(0, 0, count).view({rows, width}),
            has_transposed ? bytes.narrow(0, count, count).view({width, rows}) : at::Tensor(), scale(),
            scales_.maximum(0)};
  }

  void probe_casts() {
    const auto cast = [&](const std::string& name, bool plain, bool transposed) {
      measure_elementwise(name, kWidth, [&, plain, transposed](std::int64_t rows, std::int64_t width) {
        Fp8Output to = make_output(rows, width, true);
        if (!plain) to.y.reset();
        if (!transposed) to.transposed.reset();
        probe_context_.kernels.quantize(Fp8Operand::input, probe_context_.inputs.next(rows, width), to.scale,
                                        to.y, to.transposed, to.maximum);
      });
    };
    cast("cast", true, false), cast("cast.both", true, true), cast("cast.turned", false, true);
    measure_elementwise("cast.transpose", kWidth, [&](std::int64_t rows, std::int64_t width) {
      Fp8Output to = make_output(rows, width, true);
      probe_context_.kernels.transpose_fp8(to.y, to.transposed);
    });
  }

  void probe_norm(NormKind kind) {
    const bool is_layer = kind == NormKind::layer_norm;
    const std::string name = is_layer ? "norm.layer_norm.narrow" : "norm.rms_norm.narrow";
    measure_elementwise(name, kNormWidth, [&](std::int64_t rows, std::int64_t width) {
      const at::Tensor weight = probe_context_.inputs.next(1, width).squeeze(0);
      at::Tensor statistics = probe_context_.sums.next(rows, is_layer ? 2 : 1);
      Fp8Output to = make_output(rows, width, false);
      probe_context_.kernels.norm_to_fp8({kind, 1e-5}, probe_context_.inputs.next(rows, width), weight,
                                         is_layer ? weight : at::Tensor(), statistics, to);
    });
  }

  void probe_activation(Activation kind, bool is_gated) {
    const std::string name = "activation." + text(kind) + (is_gated ? ".gated" : "") + ".narrow";
    const auto next_operand = [&](std::int64_t rows, std::int64_t width) {
      return probe_context_.inputs.next(rows, width);
    };
    measure_elementwise(name, kWidth, [&](std::int64_t rows, std::int64_t width) {
      Fp8Output to = make_output(rows, width, true);
      probe_context_.kernels.activation_to_fp8(kind, next_operand(rows, width),
                                               is_gated ? next_operand(rows, width) : at::Tensor(), to);
    });
    measure_elementwise(name + ".backward", kWidth, [&](std::int64_t rows, std::int64_t width) {
      const std::int64_t columns = is_gated ? 2 * width : width, count = rows * columns;
      const at::Tensor bytes =
          probe_context_.outputs.next(rows, columns).view({-1}).view(fp8_type(Fp8Operand::gradient));
      at::Tensor y = bytes.narrow(0, 0, count).view({rows, columns}),
                 transposed = bytes.narrow(0, count, count).view({columns, rows}),
                 maximum = scales_.maximum(0),
                 sum = is_gated ? at::Tensor() : probe_context_.sums.next(1, width).squeeze(0);
      probe_context_.kernels.quantize_activation_gradient(
          kind, next_operand(rows, width), next_operand(rows, width),
          is_gated ? next_operand(rows, width) : at::Tensor(), scale(), y, transposed, maximum, sum);
    });
  }

  void probe_gemms() {
    const Axis rows = {4096, 16384, 65536}, widths = {1024, 2048, 4096, 8192};
    for (const char* name : {"narrow.product", "narrow.input", "narrow.weight"})
      times_.tables[name].axes = {rows, widths, widths};
    const std::int64_t total = std::ssize(rows) * std::ssize(widths) * std::ssize(widths);
    std::int64_t num_done = 0;
    for (const double r : rows)
      for (const double i : widths)
        for (const double o : widths) {
          probe_context_.progress(num_done++, total);
          measure(static_cast<std::int64_t>(r), static_cast<std::int64_t>(i), static_cast<std::int64_t>(o));
        }
  }

  void measure(std::int64_t rows, std::int64_t inner, std::int64_t outer) {
    const std::unique_ptr<Gemm> fp8_gemm =
        make_fp8_gemm({probe_context_.gemm, probe_context_.kernels, scales_}, 0, LayerGemm::up);
    const at::Tensor weight = probe_context_.inputs.next(outer, inner);
    const auto forward = [&](bool is_input_fp8) {
      const at::Tensor x = probe_context_.inputs.next(rows, inner);
      at::Tensor y = probe_context_.outputs.next(rows, outer);
      if (is_input_fp8) (void)fp8_gemm->input_destination(x, weight, /*transposes=*/true);
      fp8_gemm->forward(x, weight, {}, y);
    };
    const auto backward = [&](bool has_input_gradient) {
      const at::Tensor dy = probe_context_.inputs.next(rows, outer),
                       x = probe_context_.inputs.next(rows, inner);
      at::Tensor dx = probe_context_.outputs.next(rows, inner),
                 gradient = probe_context_.sums.next(outer, inner);
      if (has_input_gradient) fp8_gemm->input_gradient(dy, weight, dx);
      (void)fp8_gemm->input_destination(x, weight, /*transposes=*/true);
      fp8_gemm->weight_gradient(dy, x, gradient);
    };
    forward(false), backward(true);  // from now on, inputs can be passed in fp8
    const double multiply_adds =
        2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(outer);
    const double elements = static_cast<double>(rows * outer);
    const auto seconds = [&](const auto& call) {
      return seconds_of_gemm(probe_context_.device, probe_context_.copy_buffer, call);
    };
    // Returns the seconds of a GEMM without the cast that was measured together with it. The result is at
    // least half of the total time, to be robust against noise.
    const auto seconds_without_cast = [&](double total_seconds, const char* cast) {
      return std::max(total_seconds / 2, total_seconds - times_.seconds(cast, elements, {elements}));
    };
    const double weight_gradient_seconds =
                     seconds_without_cast(seconds([&] { backward(false); }), "cast.turned"),
                 backward_seconds = seconds_without_cast(seconds([&] { backward(true); }), "cast.both");
    times_.tables["narrow.product"].rates.push_back(multiply_adds / seconds([&] { forward(true); }));
    times_.tables["narrow.weight"].rates.push_back(multiply_adds / weight_gradient_seconds);
    times_.tables["narrow.input"].rates.push_back(
        multiply_adds / std::max(backward_seconds / 4, backward_seconds - weight_gradient_seconds));
  }

  const Fp8ProbeContext& probe_context_;
  KernelTimes& times_;
  Fp8Scales scales_;
};

}  // namespace

void probe_fp8(const Fp8ProbeContext& context, KernelTimes& times) { Fp8Probe(context, times).run(); }

}  // namespace optimus
