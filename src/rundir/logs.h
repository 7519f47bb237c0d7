// Merges the logs of all ranks of a run in the order of time, around a failure. Lines written by Optimus
// begin with the time (base/time_stamp.h); a line without it, such as a library's, belongs to the preceding
// line of its file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace optimus {

// The rank of lines of RUN/logs/run.log, the log of the process that starts and watches the ranks.
inline constexpr int kNoRank = -1;
Path run_log_path();

struct LogLine {
  std::int64_t micros = 0;  // microseconds since 1970; 0 before the first time stamp of the file
  int rank = kNoRank;
  std::string text;  // without the time
  bool operator==(const LogLine&) const = default;
};

struct LogQuery {
  // Time range around the failure, or around the last line if nothing failed; nullopt for all lines.
  std::optional<Seconds> window{};
  std::optional<int> rank{};
};

// Pure: parses the lines of one file, and merges those of all files. Equal times keep the order of files.
std::vector<LogLine> parse_log(std::string_view content, int rank);
std::vector<LogLine> merge_logs(const std::vector<std::vector<LogLine>>& files, const LogQuery& query);

// Reads the end of each log, at most this many bytes. Throws UserError if the folder has no logs.
std::vector<LogLine> read_logs(const Path& run, const LogQuery& query, Bytes max_bytes = Bytes(16 << 20));

// Appends the failure of a run to its own log. A write error is ignored.
void log_failure(const Path& run, const std::string& why);

}  // namespace optimus
