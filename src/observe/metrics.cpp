// Implements metrics.h.
#include "observe/metrics.h"

#include "base/json.h"

namespace optimus {
namespace {

// The lines that a run writes have a few hundred bytes. A much longer line indicates that this is a different
// kind of file.
constexpr std::size_t kMaxLineBytes = 64 << 10;

// The part of the file that contains the steps up to `last_step`.
std::string_view lines_up_to(std::string_view content, std::int64_t last_step, const std::string& name) {
  std::size_t begin = 0;
  for (int number = 1; last_step > 0; ++number) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string_view::npos) break;
    const std::string location = fmt::format("{} line {}", name, number);
    if (end - begin > kMaxLineBytes)
      throw RuntimeFailure(
          "{}: the line has {} bytes, but a line of metrics has at most {}; move the file to continue",
          location, end - begin, kMaxLineBytes);
    const Json line = parse_json(content.substr(begin, end - begin), location);
    if (JsonView(line, location).at("step").integer(0) > last_step) break;
    begin = end + 1;
  }
  return content.substr(0, begin);
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  OrderedJson line = {{"step", metrics.step},
                      {"loss", metrics.loss},
                      {"grad_norm", metrics.grad_norm},
                      {"lr", metrics.learning_rate},
                      {"tokens", metrics.tokens},
                      {"seconds", metrics.seconds.value},
                      {"tokens_per_second", metrics.tokens_per_second},
                      {"epoch", metrics.epoch}};
  if (metrics.is_skipped) line["skipped"] = true;
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.validation_loss) line["validation_loss"] = *metrics.validation_loss;
  if (metrics.tflops) line["tflops"] = *metrics.tflops;
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  if (metrics.memory) line["memory_bytes"] = metrics.memory->value;
  if (metrics.saved)
    line["saved"] = {{"step", metrics.saved->step},
                     {"bytes", metrics.saved->bytes.value},
                     {"pause_seconds", metrics.saved->pause.value},
                     {"write_seconds", metrics.saved->write.value}};
  return line.dump();
}

Outcome<MetricsFile> MetricsFile::open(FileSystem& files, const Path& path, std::int64_t last_step,
                                       const std::function<void()>& check) {
  MappedFile old_file;
  if (std::error_code error; std::filesystem::exists(path, error)) {
    Outcome<MappedFile> mapped = MappedFile::open(path);
    if (!mapped) return tl::unexpected(mapped.error());
    old_file = std::move(*mapped);
  }
  const std::string_view content(reinterpret_cast<const char*>(old_file.bytes().data()),
                                 old_file.bytes().size());
  const std::string_view retained = lines_up_to(content, last_step, path.string());
  Outcome<AtomicFile> new_file = AtomicFile::create(files, path);
  if (!new_file) return tl::unexpected(new_file.error());
  if (Outcome<void> outcome = new_file->write(retained); !outcome) return tl::unexpected(outcome.error());
  if (check) check();
  Outcome<std::unique_ptr<WritableFile>> file = new_file->commit_and_continue();
  if (!file) return tl::unexpected(file.error());
  return MetricsFile(LogFile(std::move(*file)));
}

Outcome<void> complete_metrics(FileSystem& files, const Path& path, std::int64_t step,
                               const std::string& line, const std::function<void()>& check) {
  try {
    Outcome<MetricsFile> file = MetricsFile::open(files, path, step, check);
    if (!file) return tl::unexpected(file.error());
    const Outcome<std::string> content = read_file(path);
    if (!content) return tl::unexpected(content.error());
    const std::size_t end = content->empty() ? 0 : content->size() - 1;
    const std::size_t previous_end = end == 0 ? std::string::npos : content->rfind('\n', end - 1);
    const std::string last_line = content->substr(previous_end == std::string::npos ? 0 : previous_end + 1);
    const std::int64_t last_step =
        last_line.empty()
            ? 0
            : JsonView(parse_json(last_line, path.string()), path.string()).at("step").integer();
    return last_step < step ? file->append_line(line) : Outcome<void>();
  } catch (const ReportedError& error) {
    return failure("{}", error.what());
  }
}

}  // namespace optimus
