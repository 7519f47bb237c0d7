// See decisions.h.
#include "observe/decisions.h"

#include "base/json.h"

namespace optimus {

std::string decision_line(const Decision& decision) {
  const auto gain = [](const std::optional<double>& value) {
    return value ? OrderedJson(*value) : OrderedJson();
  };
  return OrderedJson{{"step", decision.step},
                     {"kind", decision.kind},
                     {"evidence", decision.evidence},
                     {"from", decision.from},
                     {"to", decision.to},
                     {"epoch", decision.epoch},
                     {"predicted_gain", gain(decision.predicted_gain)},
                     {"realised_gain", gain(decision.realised_gain)},
                     {"pause_seconds", decision.pause.value},
                     {"prepare_seconds", decision.prepare.value},
                     {"moved_bytes", decision.moved.value},
                     {"minimum_bytes", decision.minimum.value},
                     {"early_bytes", decision.early.value},
                     {"precopied_bytes", decision.precopied.value}}
      .dump();
}

}  // namespace optimus
