// Merges the logs of all ranks in chronological order, around the time of a failure. Lines written by Optimus
// begin with the time (base/time_stamp.h). Lines without a time, such as the output of libraries, belong to
// the previous line in the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace optimus {

// The rank of lines from RUN/logs/run.log, the log of the process that starts and watches the ranks.
inline constexpr int kNoRank = -1;
Path run_log_path();

struct LogLine {
  std::int64_t micros = 0;  // microseconds since 1970; 0 before the first time stamp of the file
  int rank = kNoRank;
  std::string text;  // without the time
  bool operator==(const LogLine&) const = default;
};

struct LogQuery {
  // Selects lines within this time of the failure, or of the last line if nothing failed. nullopt selects all
  // lines.
  std::optional<Seconds> window{};
  std::optional<int> rank{};
};

// parse_log() parses the lines of one file. merge_logs() merges the lines of several files; lines with equal
// times keep the order of the files. No side effects.
std::vector<LogLine> parse_log(std::string_view content, int rank);
std::vector<LogLine> merge_logs(const std::vector<std::vector<LogLine>>& files, const LogQuery& query);

// Reads at most `max_bytes` from the end of each log. Throws UserError if the folder has no logs.
std::vector<LogLine> read_logs(const Path& run, const LogQuery& query, Bytes max_bytes = Bytes(16 << 20));

// Appends the failure of a run to RUN/logs/run.log. Write errors are ignored.
void log_failure(const Path& run, const std::string& why);

}  // namespace optimus
