// Implements logs.h.
#include "rundir/logs.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "base/time_stamp.h"

namespace optimus {
namespace {

constexpr std::string_view kFailed = "failed: ";
constexpr std::string_view kRankLog = "rank-", kLogEnding = ".log";

// Returns nullopt if the file is not a log.
std::optional<int> rank_of(const std::string& name) {
  if (name == run_log_path().filename()) return kNoRank;
  if (!starts_with(name, kRankLog) || !ends_with(name, kLogEnding)) return std::nullopt;
  const std::string number = name.substr(kRankLog.size(), name.size() - kRankLog.size() - kLogEnding.size());
  if (number.empty() || number.size() > 7 || number.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoi(number);
}

std::int64_t failure_time(const std::vector<LogLine>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line)
    if (line->rank == kNoRank && starts_with(line->text, kFailed)) return line->micros;
  return lines.empty() ? 0 : lines.back().micros;
}

// Parses the complete lines at the end of a file.
std::vector<LogLine> read_end(const Path& path, int rank, Bytes max_bytes) {
  std::error_code error;
  if (std::filesystem::file_size(path, error) == 0 || error) return {};
  const MappedFile file = value_or_throw(MappedFile::open(path));
  std::string_view content(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (std::ssize(content) > max_bytes.value) {
    content.remove_prefix(content.size() - static_cast<std::size_t>(max_bytes.value));
    content.remove_prefix(std::min(content.size(), content.find('\n') + 1));
  }
  return parse_log(content, rank);
}

}  // namespace

Path run_log_path() { return Path("logs") / "run.log"; }

std::vector<LogLine> parse_log(std::string_view content, int rank) {
  std::vector<LogLine> lines;
  std::int64_t latest = 0;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(content.size(), end + 1));
    if (const std::optional<std::int64_t> time = find_time_stamp(line)) {
      latest = *time;
      line.remove_prefix(kTimeStampLength);
    }
    lines.push_back({latest, rank, std::string(line)});
  }
  return lines;
}

std::vector<LogLine> merge_logs(const std::vector<std::vector<LogLine>>& files, const LogQuery& query) {
  std::vector<LogLine> lines;
  for (const std::vector<LogLine>& file : files) lines.insert(lines.end(), file.begin(), file.end());
  std::stable_sort(lines.begin(), lines.end(),
                   [](const LogLine& a, const LogLine& b) { return a.micros < b.micros; });
  const std::int64_t failure_micros = failure_time(lines);
  std::erase_if(lines, [&](const LogLine& line) {
    if (query.rank && line.rank != *query.rank) return true;
    return query.window &&
           static_cast<double>(std::max(line.micros, failure_micros) -
                               std::min(line.micros, failure_micros)) > 1e6 * query.window->value;
  });
  return lines;
}

std::vector<LogLine> read_logs(const Path& run, const LogQuery& query, Bytes max_bytes) {
  const Path folder = run / run_log_path().parent_path();
  std::vector<std::pair<int, Path>> logs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (const std::optional<int> rank = rank_of(entry.path().filename()))
      logs.emplace_back(*rank, entry.path());
  if (logs.empty()) throw UserError("{}: no logs found in the folder logs", run.string());
  std::sort(logs.begin(), logs.end());
  if (query.rank &&
      std::none_of(logs.begin(), logs.end(), [&](const auto& log) { return log.first == *query.rank; }))
    throw UserError("{}: rank {} does not exist; the highest rank is {}", run.string(), *query.rank,
                    logs.back().first);
  std::vector<std::vector<LogLine>> files;
  for (const auto& [rank, path] : logs) files.push_back(read_end(path, rank, max_bytes));
  return merge_logs(files, query);
}

void log_failure(const Path& run, const std::string& why) {
  std::ofstream(run / run_log_path(), std::ios::app) << time_stamp() << kFailed << why << '\n';
}

}  // namespace optimus
