// See block.h.
#include "engine/block.h"

#include "base/error.h"

namespace optimus {

ActivationTensors::ActivationTensors(const ActivationBuffer& activation_buffer, const at::Tensor& memory,
                                     ElementTypes types) {
  for (const TensorPlacement& placement : activation_buffer.places) {
    at::ScalarType type = types.element;
    if (placement.type == SavedType::fp32) type = types.wide;
    if (placement.type == SavedType::index) type = at::kLong;
    if (placement.type == SavedType::byte) type = at::kByte;
    const auto width = static_cast<std::int64_t>(at::elementSize(type));
    const std::int64_t span =
        placement.rows == 0 ? 0 : ((placement.rows - 1) * placement.row_stride + placement.columns) * width;
    tensors_.emplace_back(placement.name,
                          memory.narrow(0, placement.offset, span)
                              .view(type)
                              .as_strided({placement.rows, placement.columns}, {placement.row_stride, 1}));
  }
}

const at::Tensor* ActivationTensors::find(std::string_view name) const {
  for (const auto& [tensor_name, tensor] : tensors_)
    if (tensor_name == name) return &tensor;
  return nullptr;
}

at::Tensor Pass::operator[](std::string_view name) const {
  for (const ActivationTensors* activation_buffer : activation_buffers)
    if (const at::Tensor* tensor = activation_buffer->find(name)) return *tensor;
  ensure(false, "this pass has no tensor named {}", name);
  return {};
}

Exchange Block::begin_exchange(const Instruction& collective, const Pass&) {
  ensure(false, "{} requested for a block that cannot be split", text(collective.op));
  return {};
}
void Block::end_exchange(const Instruction&, const Pass&) {}

namespace {

PositionMap positions_of(const Pass& pass) {
  const std::vector<Span>& spans = pass.microbatch->host->context;
  if (spans.empty()) return {};
  PositionMap map{.first_position = spans[0].begin};
  if (spans.size() > 1) map.jump_at = spans[0].size(), map.jump = spans[1].begin - spans[0].end;
  return map;
}

}  // namespace

DropoutSite dropout_site(const Pass& pass, double rate, int layer, std::string_view site,
                         std::int64_t first_row) {
  if (!pass.is_training || rate == 0) return {};
  return {rate,
          pass.dropout.derive(static_cast<std::uint64_t>(pass.step))
              .derive(static_cast<std::uint64_t>(layer + 1))
              .derive(site),
          pass.microbatch->host->samples,
          pass.own_length,
          first_row,
          positions_of(pass)};
}

at::Tensor padded_to(const at::Tensor& tensor, std::int64_t rows) {
  return tensor.as_strided({rows, tensor.size(1)}, {tensor.stride(0), 1});
}

}  // namespace optimus
