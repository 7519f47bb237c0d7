// See probe.h.
#include "engine/probe.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <functional>

#include "engine/engine.h"
#include "engine/gemm.h"
#include "engine/make_gemm.h"
#include "engine/probe_fp8.h"
#include "engine/probe_timing.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "model/open.h"

namespace optimus {
namespace {

using Axis = std::vector<double>;

class KernelProbe {
 public:
  KernelProbe(at::Device device, Precision precision, EventSink& events)
      : device_(device),
        types_(types_of(precision)),
        precision_(precision),
        events_(events),
        kernels_(make_kernels(device)),
        attention_(make_attention(device, types_.element)),
        gemm_(make_gemm(device, types_.element)),
        inputs_(at::randn({ring_size()}, at::TensorOptions(at::kFloat).device(device))
                    .mul_(0.02)
                    .to(types_.element)),
        outputs_(at::zeros({ring_size()}, at::TensorOptions(types_.element).device(device))),
        sums_(at::zeros({ring_size()}, at::TensorOptions(types_.wide).device(device))),
        copy_buffer_(at::zeros({ring_size()}, at::TensorOptions(at::kFloat).device(device))) {}

  KernelTimes run() {
    warm_up();
    probe_gemms();
    probe_attention();
    probe_elementwise();
    probe_update();
    probe_host();
    if (precision_ == Precision::fp8)
      probe_fp8({device_, *gemm_, *kernels_, inputs_, outputs_, sums_, copy_buffer_,
                 [&](std::int64_t num_done, std::int64_t total) { progress("fp8 GEMMs", num_done, total); }},
                times_);
    return std::move(times_);
  }

 private:
  bool is_cuda() const { return device_.is_cuda(); }
  std::int64_t ring_size() const { return is_cuda() ? std::int64_t{1} << 30 : std::int64_t{1} << 25; }

  // Computes GEMMs for some seconds, because a device that was idle initially runs faster or slower than in
  // training.
  void warm_up() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(is_cuda() ? 3 : 1);
    const std::int64_t edge = is_cuda() ? 4096 : 512;
    while (std::chrono::steady_clock::now() < end) {
      at::Tensor y = outputs_.next(edge, edge);
      gemm_->forward(inputs_.next(edge, edge), inputs_.next(edge, edge), {}, y);
      wait_for(device_);
    }
  }

  void progress(const std::string& description, std::int64_t num_done, std::int64_t total) {
    events_.report(
        Progress{"measuring " + description + " in " + text(precision_), num_done, total, "sizes"});
  }

  void probe_gemms() {
    const Axis rows = is_cuda() ? Axis{256, 1024, 4096, 16384, 65536} : Axis{64, 256, 1024, 4096};
    const Axis widths = is_cuda() ? Axis{256, 1024, 2048, 4096, 8192, 32768} : Axis{64, 256, 1024, 4096};
    RateTable* const tables[] = {&times_.tables["product"], &times_.tables["product.add"],
                                 &times_.tables["product.input"], &times_.tables["product.weight"]};
    for (RateTable* table : tables) table->axes = {rows, widths, widths};
    const std::size_t points_per_row = widths.size() * widths.size(), total = rows.size() * points_per_row;
    for (std::size_t point = 0; point < total; ++point) {
      const double r = rows[point / points_per_row], i = widths[point / widths.size() % widths.size()],
                   o = widths[point % widths.size()];
      progress("GEMMs", static_cast<std::int64_t>(point), static_cast<std::int64_t>(total));
      for (std::size_t use = 0; use < std::size(tables); ++use) {
        std::vector<double>& rates = tables[use]->rates;
        const double previous_rate =
            point < points_per_row ? 0 : rates[point - points_per_row];  // rate with fewer rows
        const bool is_long = previous_rate > 0 && 2 * r * i * o / previous_rate > max_gemm_seconds();
        rates.push_back(is_long ? previous_rate
                                : gemm_rate(use, static_cast<std::int64_t>(r), static_cast<std::int64_t>(i),
                                            static_cast<std::int64_t>(o)));
      }
    }
  }
  // Returns the maximum duration of a GEMM that is measured, in seconds. A GEMM that would take longer is
  // assumed to reach the same rate as the GEMM with the next smaller number of rows.
  double max_gemm_seconds() const { return is_cuda() ? 0.02 : 0.2; }

  double gemm_rate(std::size_t use, std::int64_t rows, std::int64_t inner, std::int64_t outer) {
    const auto call = [&] {
      if (use < 2) {
        at::Tensor y = outputs_.next(rows, outer);
        gemm_->forward(inputs_.next(rows, inner), inputs_.next(outer, inner), {}, y, use == 1);
      } else if (use == 2) {
        at::Tensor dx = outputs_.next(rows, inner);
        gemm_->input_gradient(inputs_.next(rows, outer), inputs_.next(outer, inner), dx);
      } else {
        at::Tensor gradient = sums_.next(outer, inner);
        gemm_->weight_gradient(inputs_.next(rows, outer), inputs_.next(rows, inner), gradient);
      }
    };
    return 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(outer) /
           seconds_of_gemm(device_, copy_buffer_, call);
  }

  void probe_attention() {
    const Axis lengths =
        is_cuda() ? Axis{128, 512, 1024, 2048, 4096, 8192, 16384} : Axis{32, 128, 512, 1024, 2048};
    const Axis widths = is_cuda() ? Axis{64, 128} : Axis{16, 32, 64, 128};
    std::int64_t num_done = 0;
    for (const bool is_causal : {true, false}) {
      const std::string name = is_causal ? "attention" : "attention.whole";
      times_.tables[name].axes = times_.tables[name + ".backward"].axes = {lengths, widths};
      for (const double length : lengths)
        for (const double width : widths) {
          progress("attention", num_done++, 2 * std::ssize(lengths) * std::ssize(widths));
          measure_attention(name, static_cast<std::int64_t>(length), static_cast<std::int64_t>(width),
                            is_causal);
        }
    }
  }

  void measure_attention(const std::string& name, std::int64_t length, std::int64_t head_dim,
                         bool is_causal) {
    const std::int64_t heads = is_cuda() ? 16 : 8, tokens = is_cuda() ? 32768 : 2048;
    AttentionTask task;
    task.shape = {std::max<std::int64_t>(1, tokens / length),  length, heads, heads, head_dim, is_causal,
                  1 / std::sqrt(static_cast<double>(head_dim))};
    const std::int64_t rows = task.shape.sequences * length, width = heads * head_dim;
    const auto split_heads = [&](const at::Tensor& x) { return x.unflatten(1, {heads, head_dim}); };
    // As in a layer, q, k and v are columns of one matrix, and so are their gradients.
    const auto columns = [&](const at::Tensor& qkv, std::int64_t n) {
      return split_heads(qkv.narrow(1, n * width, width));
    };
    const at::Tensor qkv = inputs_.next(rows, 3 * width);
    at::Tensor out = split_heads(outputs_.next(rows, width));
    at::Tensor logsumexp =
        at::zeros({task.shape.sequences, heads, length}, at::TensorOptions(types_.wide).device(device_));
    const auto positions = static_cast<double>(length);
    const double flops =
        4.0 * static_cast<double>(rows * width) * (is_causal ? (positions + 1) / 2 : positions);
    const auto forward = [&] {
      attention_->forward(task, columns(qkv, 0), columns(qkv, 1), columns(qkv, 2), out, logsumexp);
    };
    times_.tables[name].rates.push_back(flops / seconds_of_kernel(device_, forward));
    const auto backward = [&] {
      const at::Tensor gradients = outputs_.next(rows, 3 * width);
      at::Tensor dq = columns(gradients, 0), dk = columns(gradients, 1), dv = columns(gradients, 2);
      attention_->backward(task, split_heads(inputs_.next(rows, width)), columns(qkv, 0), columns(qkv, 1),
                           columns(qkv, 2), out, logsumexp, dq, dk, dv);
    };
    // The backward pass recomputes the scores, so it has five GEMMs instead of two.
    times_.tables[name + ".backward"].rates.push_back(2.5 * flops / seconds_of_kernel(device_, backward));
  }

  // Measures a memory-bound kernel on rows of a typical width. The result is elements per second as a
  // function of the number of elements.
  void measure_elementwise(const std::string& name, std::int64_t width,
                           const std::function<void(std::int64_t rows, std::int64_t width)>& call) {
    const Axis sizes =
        is_cuda() ? Axis{1 << 18, 1 << 21, 1 << 24, 1 << 27} : Axis{1 << 14, 1 << 17, 1 << 20, 1 << 23};
    RateTable& table = times_.tables[name];
    table.axes = {{}};
    for (const double size : sizes) {
      const std::int64_t rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(size) / width);
      table.axes[0].push_back(static_cast<double>(rows * width));
      table.rates.push_back(static_cast<double>(rows * width) /
                            seconds_of_kernel(device_, [&] { call(rows, width); }));
    }
    progress("kernels", std::ssize(times_.tables), 25);
  }

  at::Tensor row_of(std::int64_t width) { return inputs_.next(1, width).squeeze(0); }
  at::Tensor sum_of(std::int64_t width) { return sums_.next(1, width).squeeze(0); }

  void probe_norm(NormKind kind, const std::string& name) {
    const bool has_bias = kind == NormKind::layer_norm;
    const NormOptions options{kind, 1e-5};
    const auto statistics = [&](std::int64_t rows) { return sums_.next(rows, has_bias ? 2 : 1).fill_(1); };
    measure_elementwise("norm." + name, 1024, [&](std::int64_t rows, std::int64_t width) {
      at::Tensor y = outputs_.next(rows, width), sums = sums_.next(rows, has_bias ? 2 : 1);
      kernels_->norm(options, inputs_.next(rows, width), row_of(width),
                     has_bias ? row_of(width) : at::Tensor(), y, sums);
    });
    at::Tensor ones;
    measure_elementwise("norm." + name + ".backward", 1024, [&](std::int64_t rows, std::int64_t width) {
      if (!ones.defined() || ones.size(0) != rows) ones = statistics(rows).clone();
      at::Tensor dx = outputs_.next(rows, width), weight = sum_of(width),
                 bias = has_bias ? sum_of(width) : at::Tensor();
      kernels_->norm_backward(options, inputs_.next(rows, width), inputs_.next(rows, width), row_of(width),
                              ones, inputs_.next(rows, width), dx, weight, bias);
    });
  }

  void probe_activation(Activation kind, bool is_gated) {
    const std::string name = "activation." + text(kind) + (is_gated ? ".gated" : "");
    const auto gate = [&](std::int64_t rows, std::int64_t width) {
      return is_gated ? inputs_.next(rows, width) : at::Tensor();
    };
    measure_elementwise(name, 4096, [&](std::int64_t rows, std::int64_t width) {
      at::Tensor y = outputs_.next(rows, width);
      kernels_->activation(kind, inputs_.next(rows, width), gate(rows, width), y);
    });
    measure_elementwise(name + ".backward", 4096, [&](std::int64_t rows, std::int64_t width) {
      at::Tensor dx = outputs_.next(rows, width),
                 d_gate = is_gated ? outputs_.next(rows, width) : at::Tensor();
      kernels_->activation_backward(kind, inputs_.next(rows, width), inputs_.next(rows, width),
                                    gate(rows, width), dx, d_gate);
    });
  }

  void probe_elementwise() {
    probe_norm(NormKind::layer_norm, "layer_norm");
    probe_norm(NormKind::rms_norm, "rms_norm");
    for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::relu})
      probe_activation(kind, false);
    probe_activation(Activation::silu, true);
    probe_rope();
    probe_embedding();
    probe_loss();
    measure_elementwise("add", 1024, [&](std::int64_t rows, std::int64_t width) {
      at::Tensor y = outputs_.next(rows, width);
      kernels_->add(inputs_.next(rows, width), row_of(width), {}, {}, y);
    });
    measure_elementwise("bias", 1024, [&](std::int64_t rows, std::int64_t width) {
      at::Tensor sum = sum_of(width);
      kernels_->add_rows(inputs_.next(rows, width), sum);
    });
  }

  void probe_rope() {
    constexpr std::int64_t kHeads = 16, kHalf = 32, kLength = 1024;
    const at::TensorOptions wide = at::TensorOptions(types_.wide).device(device_);
    const at::Tensor table = at::zeros({kLength, kHalf}, wide).fill_(0.5);
    at::Tensor positions;
    measure_elementwise("rope", kHeads * 2 * kHalf, [&](std::int64_t rows, std::int64_t width) {
      if (!positions.defined() || positions.size(0) != rows)
        positions = at::arange(rows, at::TensorOptions(at::kInt).device(device_)).remainder(kLength);
      at::Tensor x = outputs_.next(rows, width).unflatten(1, {kHeads, 2 * kHalf});
      kernels_->rope(x, table, table, positions, false);
    });
  }

  void probe_embedding() {
    constexpr std::int64_t kVocab = 16384, kWidth = 1024;
    const at::Tensor table = inputs_.next(kVocab, kWidth);
    at::Tensor sums = at::zeros({kVocab, kWidth}, at::TensorOptions(types_.wide).device(device_));
    at::Tensor ids, positions;
    const auto prepare = [&](std::int64_t rows) {
      if (ids.defined() && ids.size(0) == rows) return;
      ids = at::randint(kVocab, {rows}, at::TensorOptions(at::kLong).device(device_));
      positions = at::zeros({rows}, at::TensorOptions(at::kInt).device(device_));
    };
    measure_elementwise("embedding", kWidth, [&](std::int64_t rows, std::int64_t width) {
      prepare(rows);
      at::Tensor out = outputs_.next(rows, width);
      kernels_->embedding(ids, positions, table, {}, {}, out);
    });
    measure_elementwise("embedding.backward", kWidth, [&](std::int64_t rows, std::int64_t width) {
      prepare(rows);
      at::Tensor no_positions, no_types;
      kernels_->embedding_backward(inputs_.next(rows, width), ids, positions, sums, no_positions, no_types);
    });
  }

  void probe_loss() {
    at::Tensor targets;
    measure_elementwise("loss", 16384, [&](std::int64_t rows, std::int64_t width) {
      if (!targets.defined() || targets.size(0) != rows)
        targets = at::randint(width, {rows}, at::TensorOptions(at::kLong).device(device_));
      at::Tensor logits = outputs_.next(rows, width), losses = sum_of(rows);
      kernels_->cross_entropy(logits, targets, losses, 1);
    });
  }

  // Measures all kernels of an update together, as they run in each step: zeroing the gradient, its norm, and
  // AdamW.
  void probe_update() {
    at::Tensor square = at::zeros({1}, at::TensorOptions(at::kDouble).device(device_));
    const at::Tensor step_scalars = step_scalars_after_gate(device_, 1e-4);
    const bool is_16_bit = types_.element != types_.wide;
    measure_elementwise("update", 1024, [&](std::int64_t rows, std::int64_t width) {
      const auto flat = [&](OperandRing& ring) { return ring.next(rows, width).view({-1}); };
      at::Tensor gradient = flat(sums_), master = flat(sums_), first_moment = flat(sums_),
                 second_moment = flat(sums_), weight = is_16_bit ? flat(outputs_) : master;
      gradient.zero_();
      kernels_->add_square_sum(gradient, square);
      kernels_->adamw({}, step_scalars, gradient, master, first_moment, second_moment, weight);
    });
  }

  // Measures the time per kernel launch and the fixed time per step, because the host limits the training
  // speed of tiny models.
  void probe_host() {
    if (is_cuda()) {
      at::Tensor x = outputs_.next(1, 128);
      times_.launch_seconds = seconds_of_kernel(device_, [&] { kernels_->add(x, {}, {}, {}, x); });
    }
    times_.step_seconds = step_seconds(1) - (step_seconds(5) - step_seconds(1)) / 4;
    times_.step_seconds = std::max(0.0, times_.step_seconds);
  }

  double step_seconds(std::int64_t layers) {
    ModelSpec model = with_overrides(
        open_model("llama3-8b"),
        {.layers = layers, .hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = 8, .ffn = 16, .vocab = 16});
    const Plan plan =
        uniform_plan(model, {.microbatch = 1,
                             .batch = 1,
                             .sequence_length = 8,
                             .precision = precision_ == Precision::fp8 ? Precision::bf16 : precision_});
    Parameters parameters(plan, model, 0, device_);
    parameters.initialize(1);
    Engine engine(plan, model, parameters, {.device = device_});
    Sample sample;
    for (std::int32_t i = 0; i < 8; ++i)
      sample.inputs.push_back(i), sample.targets.push_back(i), sample.positions.push_back(i);
    sample.num_targets = 8;
    const Batch batch = make_batch({sample}, plan, 0, 0);
    return seconds_of(device_, [&] {
      ensure(engine.train_step(batch, {.learning_rate = 0}).has_value(),
             "a training step of the probe failed");
    });
  }

  at::Device device_;
  ElementTypes types_;
  Precision precision_;
  EventSink& events_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<Gemm> gemm_;
  OperandRing inputs_, outputs_, sums_;
  at::Tensor copy_buffer_;
  KernelTimes times_;
};

NumberFormat format_name(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return NumberFormat::fp64;
    case Precision::fp32:
      return NumberFormat::fp32;
    case Precision::bf16:
      return NumberFormat::bf16;
    case Precision::fp16:
      return NumberFormat::fp16;
    case Precision::fp8:
      return NumberFormat::fp8;
  }
  return NumberFormat::fp32;
}

}  // namespace

KernelTimes probe_kernels(at::Device device, Precision precision, EventSink& events) {
  if (precision == Precision::fp8 && !device.is_cuda())
    throw UserError("--precision fp8: only GPUs support fp8; use bf16 or fp32 to measure {}", device.str());
  KernelTimes times = KernelProbe(device, precision, events).run();
  times.format = format_name(precision);
  return times;
}

double probe_memory(at::Device device) {
  const std::int64_t bytes = device.is_cuda() ? std::int64_t{1} << 30 : std::int64_t{1} << 27;
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  const at::Tensor from = at::zeros({bytes}, options);
  at::Tensor to = at::zeros({bytes}, options);
  return 2.0 * static_cast<double>(bytes) / seconds_of(device, [&] { to.copy_(from); });
}

}  // namespace optimus
