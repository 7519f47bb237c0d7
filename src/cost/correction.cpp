// See correction.h.
#include "cost/correction.h"

#include <algorithm>

#include "base/text.h"
#include "cluster/standard.h"

namespace optimus {
namespace {

class Corrector {
 public:
  Corrector(CorrectedInputs& result, const std::vector<Residual>& residuals)
      : result_(result), residuals_(residuals) {}

  void run() {
    const std::vector<DeviceType>& types = result_.profile.types;
    const bool is_first_builtin = is_builtin(types[static_cast<std::size_t>(first_type())]);
    // All devices share one set of constants. If they also have the same type, the residual of layers is
    // applied to the constants, so that the peak rates keep their data-sheet values. Otherwise, it is applied
    // to each type.
    if (types.size() == 1 && is_first_builtin) {
      const double slowdown = factor(ResidualKind::layers, types.front().name);
      result_.constants.compute_residual *= slowdown, result_.constants.memory_residual *= slowdown;
    } else {
      for (DeviceType& type : result_.profile.types)
        if (is_builtin(type)) correct(type);
    }
    if (is_first_builtin) correct_constants(types[static_cast<std::size_t>(first_type())].name);
    for (NodeGroup& group : result_.profile.groups) correct(group);
  }

 private:
  int first_type() const { return result_.profile.groups.front().type; }

  void correct_constants(const std::string& name) {
    result_.constants.host_residual *= factor(ResidualKind::host, name);
    // The optimizer update is limited by memory bandwidth, which the residual of layers has already
    // corrected.
    const double layers =
        std::clamp(factor_of(residuals_, ResidualKind::layers, name), 1 / kMaxCorrection, kMaxCorrection);
    if (const Residual* known_residual = find(ResidualKind::optimizer, name))
      result_.constants.optimizer_traffic *= correction_factor(*known_residual) / layers;
  }

  static bool is_builtin(const DeviceType& type) {
    const std::optional<DeviceType> built_in = find_device_type(type.name);
    return built_in && type.kernels.empty() && built_in->peak == type.peak &&
           built_in->memory_bytes_per_second == type.memory_bytes_per_second;
  }

  void correct(DeviceType& type) {
    const double slowdown = factor(ResidualKind::layers, type.name);
    for (double* rate : {&type.peak.fp64, &type.peak.fp32, &type.peak.tf32, &type.peak.bf16, &type.peak.fp16,
                         &type.peak.fp8, &type.peak.fp4, &type.memory_bytes_per_second})
      *rate /= slowdown;
  }

  void correct(NodeGroup& group) {
    const std::string name = result_.profile.types[static_cast<std::size_t>(group.type)].name;
    if (!find_device_type(name)) return;
    const NodeGroup built_in = standard_group(name, group.type, group.num_devices);
    const auto correct_link = [&](LinkSpec& link, const LinkSpec& nominal_link, const std::string& kind) {
      if (!(link == nominal_link)) return;
      link.bytes_per_second /= factor(ResidualKind::large_messages, name + "/" + kind);
      link.latency.value *= factor(ResidualKind::small_messages, name + "/" + kind);
    };
    correct_link(group.domain_link, built_in.domain_link, "domain");
    correct_link(group.network.nic, built_in.network.nic, "network");
  }

  const Residual* find(ResidualKind kind, const std::string& device_type) const {
    for (const Residual& residual : residuals_)
      if (residual.kind == kind && residual.device_type == device_type) return &residual;
    return nullptr;
  }

  // Records that the residual is used.
  double correction_factor(const Residual& residual) {
    const bool is_listed = std::any_of(
        result_.applied_residuals.begin(), result_.applied_residuals.end(), [&](const Residual& other) {
          return other.kind == residual.kind && other.device_type == residual.device_type;
        });
    if (!is_listed) result_.applied_residuals.push_back(residual);
    return std::clamp(residual.factor, 1 / kMaxCorrection, kMaxCorrection);
  }

  double factor(ResidualKind kind, const std::string& device_type) {
    const Residual* const residual = find(kind, device_type);
    return residual == nullptr ? 1 : correction_factor(*residual);
  }

  CorrectedInputs& result_;
  const std::vector<Residual>& residuals_;
};

}  // namespace

CorrectedInputs correct_inputs(HardwareProfile profile, const Constants& constants,
                               const std::vector<Residual>& residuals) {
  CorrectedInputs result{std::move(profile), constants, {}};
  Corrector(result, residuals).run();
  return result;
}

std::string text(const CorrectedInputs& inputs) {
  if (inputs.applied_residuals.empty()) return "history: no runs on these devices and links";
  std::vector<std::string> parts;
  for (const Residual& residual : inputs.applied_residuals)
    parts.push_back(fmt::format("{} on {} x {:.2f} ({:.2f}–{:.2f}, {} run{})", text(residual.kind),
                                residual.device_type, residual.factor, residual.low, residual.high,
                                residual.num_runs, residual.num_runs == 1 ? "" : "s"));
  return "history: seconds of " + join(parts, "; ");
}

OrderedJson to_json(const std::vector<Residual>& residuals) {
  OrderedJson json = OrderedJson::array();
  for (const Residual& residual : residuals)
    json.push_back({{"kind", text(residual.kind)},
                    {"where", residual.device_type},
                    {"factor", residual.factor},
                    {"low", residual.low},
                    {"high", residual.high},
                    {"runs", residual.num_runs}});
  return json;
}

}  // namespace optimus
