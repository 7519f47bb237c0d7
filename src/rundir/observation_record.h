// Appends an observation to observations.jsonl whenever the number of findings changes, and every ten
// seconds.
#pragma once

#include <chrono>
#include <fstream>
#include <vector>

#include "adapt/detect.h"
#include "base/file.h"

namespace optimus {

class ObservationRecord {
 public:
  explicit ObservationRecord(const Path& run) : path_(run / "observations.jsonl") {}
  void operator()(const Observation& observation, const std::vector<Finding>& findings) {
    constexpr std::chrono::seconds kRecordInterval{10};
    const auto now = std::chrono::steady_clock::now();
    if (findings.size() == num_findings_ && now - last_write_ < kRecordInterval) return;
    num_findings_ = findings.size(), last_write_ = now;
    std::ofstream(path_, std::ios::app) << to_json(observation).dump() << '\n';  // a write error is ignored
  }

 private:
  Path path_;
  std::size_t num_findings_ = 0;
  std::chrono::steady_clock::time_point last_write_;
};

}  // namespace optimus
