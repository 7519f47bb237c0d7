// Implements step_record.h.
#include "run/step_record.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace optimus {
namespace {

constexpr int kTag = 0x7fe0;  // differs from the tags of steps

// Both ranks run the same program on machines with the same byte order.
struct StepRecord {
  double loss = 0, grad_norm = 0, seconds = 0;
  double loss_scale = 0;                                              // 0 if there is none
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  // NaN if there is none
  std::int64_t tokens = 0, memory_bytes = 0;
  bool is_skipped = false;
};
static_assert(std::is_trivially_copyable_v<StepRecord>);

// The operation that uses the buffer owns it, because the operation may outlive a failed wait.
at::Tensor make_buffer() { return at::zeros({sizeof(StepRecord)}, at::kByte); }

}  // namespace

void send_step_record(Comm& comm, const StepMetrics& metrics, const Deadline& deadline) {
  StepRecord record{.loss = metrics.loss, .grad_norm = metrics.grad_norm, .seconds = metrics.seconds.value};
  record.loss_scale = metrics.loss_scale.value_or(0);
  if (metrics.validation_loss) record.validation_loss = *metrics.validation_loss;
  record.tokens = metrics.tokens, record.memory_bytes = metrics.memory.value_or(Bytes(0)).value;
  record.is_skipped = metrics.is_skipped;
  const at::Tensor buffer = make_buffer();
  std::memcpy(buffer.data_ptr<std::uint8_t>(), &record, sizeof(record));
  throw_if_failed(comm.send(0, buffer, kTag, "step metrics")->wait(deadline));
}

void receive_step_record(Comm& comm, int sender, StepMetrics& metrics, const Deadline& deadline) {
  const at::Tensor buffer = make_buffer();
  throw_if_failed(comm.receive(sender, buffer, kTag, "step metrics")->wait(deadline));
  StepRecord record;
  std::memcpy(&record, buffer.const_data_ptr<std::uint8_t>(), sizeof(record));
  metrics.loss = record.loss, metrics.grad_norm = record.grad_norm, metrics.tokens = record.tokens;
  metrics.seconds = Seconds(record.seconds), metrics.is_skipped = record.is_skipped;
  metrics.tokens_per_second = static_cast<double>(record.tokens) / std::max(1e-9, record.seconds);
  if (record.loss_scale > 0) metrics.loss_scale = record.loss_scale;
  if (!std::isnan(record.validation_loss)) metrics.validation_loss = record.validation_loss;
  metrics.memory = Bytes(record.memory_bytes);
}

}  // namespace optimus
