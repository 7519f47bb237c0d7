// See recovery_costs.h.
#include "recovery/recovery_costs.h"

#include <vector>

#include "base/error.h"

namespace optimus {
namespace {

constexpr int kCostsVersion = 1;

struct CostRow {
  const char* name;
  double RecoveryCosts::*member;
  double min_value, max_value;
};

constexpr CostRow kCostRows[] = {
    {"start_seconds", &RecoveryCosts::start_seconds, 0, 1e6},
    {"detection_seconds", &RecoveryCosts::detection_seconds, 0, 1e6},
    {"recovery_seconds", &RecoveryCosts::recovery_seconds, 0, 1e6},
    {"switch_seconds", &RecoveryCosts::switch_seconds, 0, 1e6},
    {"prepare_seconds", &RecoveryCosts::prepare_seconds, 0, 1e6},
    {"join_bytes", &RecoveryCosts::join_bytes, 0, 1e15},
    {"loss_bytes", &RecoveryCosts::loss_bytes, 0, 1e15},
    {"link_bytes_per_second", &RecoveryCosts::link_bytes_per_second, 1, 1e15},
};

}  // namespace

OrderedJson to_json(const RecoveryCosts& costs) {
  OrderedJson json = {{"format", "optimus-recovery-costs"}, {"version", kCostsVersion}};
  for (const CostRow& row : kCostRows) json[row.name] = costs.*row.member;
  return json;
}

RecoveryCosts parse_recovery_costs(std::string_view text, const std::string& source, RecoveryCosts costs) {
  const Json document = parse_json(text, source);
  const JsonView json(document, source);
  if (json.at("format").text() != "optimus-recovery-costs")
    json.at("format").refuse("\"optimus-recovery-costs\"");
  if (const auto version = json.at("version").integer(); version != kCostsVersion)
    throw UserError("{}: version {} is not supported; this program reads version {}", source, version,
                    kCostsVersion);
  std::vector<std::string> keys = {"format", "version", "origin"};
  for (const CostRow& row : kCostRows) keys.emplace_back(row.name);
  json.allow_only(keys);
  for (const CostRow& row : kCostRows)
    if (const auto value = json.find(row.name)) {
      costs.*row.member = value->number();
      if (!(costs.*row.member >= row.min_value && costs.*row.member <= row.max_value))
        throw UserError("{}: expected {} to {}, got {}", value->location(), row.min_value, row.max_value,
                        value->number());
    }
  return costs;
}

}  // namespace optimus
