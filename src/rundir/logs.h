// The logs of all ranks of a run as one, in the order of time, around a failure. Lines of ours begin with the time
// (base/time_stamp.h); one without it, such as a library's, belongs to the line before it in its file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace optimus {

// RUN/logs/run.log: what the process says that starts and watches the ranks.
inline constexpr int kNoRank = -1;
Path run_log_path();

struct LogLine {
  std::int64_t micros = 0;  // since 1970; 0: the file has told no time yet
  int rank = kNoRank;
  std::string text;  // without the time
  bool operator==(const LogLine&) const = default;
};

struct LogQuery {
  std::optional<Seconds> around{};  // of the failure, or of the last line where nothing failed; nothing: all
  std::optional<int> rank{};
};

// Pure: the lines of one file, and of all in one order. Equal times keep the order of files.
std::vector<LogLine> parse_log(std::string_view content, int rank);
std::vector<LogLine> merge_logs(const std::vector<std::vector<LogLine>>& files, const LogQuery& query);

// Reads the end of each log, at most so much. Throws UserError when the folder has none.
std::vector<LogLine> read_logs(const Path& run, const LogQuery& query, Bytes most = Bytes(16 << 20));

// What a failed run ends with, as its own log says it. That it cannot be written is no failure.
void note_failure(const Path& run, const std::string& why);

}  // namespace optimus
