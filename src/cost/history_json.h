// The history file. It is local, small and optional: a command that cannot read it continues without a
// history.
//
//   {"format": "optimus-history", "version": 1, "runs": [
//     {"when": 1794900000, "device": "h100", "devices": 8, "parameters": 8030261248, "layers": 32,
//      "batch": 256, "sequence": 8192, "step_seconds": 12.5, "strategy": {"tp": 2, "dp": 4, "zero": 1, …},
//      "evidence": [{"kind": "layers", "where": "h100", "log_factor": 0.11, "doubt": 0.01, "steps": 40}, …]},
//     …]}
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "cost/history.h"

namespace optimus {

OrderedJson to_json(const History& history);
// Throws a UserError if the format is not supported, a kind or key is unknown, there are too many runs or too
// much evidence, or a number is outside its plausible range.
History parse_history(std::string_view text, const std::string& source);

// The path of the history file, in the same folder as the measurements of `optimus profile`.
Path history_path();
// Reads the file `name`, where "here" stands for history_path(). Throws a ReportedError if the file does not
// exist or is invalid.
History read_history(const std::string& name);
Outcome<void> write_history(FileSystem& files, const Path& path, const History& history);

}  // namespace optimus
