// The history in a file: local, small, and never needed: whoever cannot read it goes on without.
//
//   {"format": "optimus-history", "version": 1, "runs": [{"when": 1794900000, "device": "h100", "devices": 8, "parameters": 8030261248,
//     "layers": 32, "batch": 256, "sequence": 8192, "step_seconds": 12.5, "strategy": {"tp": 2, "dp": 4, "zero": 1, …},
//     "evidence": [{"kind": "layers", "where": "h100", "log_factor": 0.11, "doubt": 0.01, "steps": 40}, …]}, …]}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "cost/history.h"

namespace optimus {

OrderedJson to_json(const History& history);
// Throws UserError: another format, an unknown kind or key, more runs or evidence than are kept, a number that no run has.
History parse_history(std::string_view text, const std::string& source);

// Beside what `optimus profile` has measured.
Path history_path();
// "here": history_path(). Throws UserError where it is not there or broken.
History read_history(const std::string& name);
Outcome<void> write_history(FileSystem& files, const Path& path, const History& history);

}  // namespace optimus
