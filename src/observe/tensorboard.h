// Writes event files for TensorBoard without a protobuf library. A file consists of records (length, masked
// CRC32C of the length, data, masked CRC32C of the data). The data contains only the protobuf fields that
// scalars need.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "observe/log_file.h"
#include "observe/metrics.h"

namespace optimus {

std::uint32_t crc32c(std::string_view bytes);
// `data` as a TFRecord record.
std::string tfrecord(std::string_view data);

struct Scalar {
  std::string_view tag;
  double value;  // stored as a float, as TensorBoard expects
};
// Returns a serialized Event with a Summary of these scalars. Times are in seconds since 1970.
std::string scalar_event(Seconds wall_time, std::int64_t step, std::span<const Scalar> scalars);

// One thread at a time.
class TensorBoardFile {
 public:
  // Creates events.out.tfevents.<seconds>.<host>.<pid> in `folder`, which must exist. The run continues after
  // `last_step`, or from the start if it is 0. TensorBoard ignores later steps in older files in the folder.
  static Outcome<TensorBoardFile> create(FileSystem& files, const Path& folder, Seconds wall_time,
                                         std::int64_t last_step);

  // Writes the tags train/loss, train/grad_norm, …, validation/loss. Returns the first write error, which
  // includes the file name. After that, steps are dropped and success is returned.
  Outcome<void> append(const StepMetrics& metrics, Seconds wall_time);

 private:
  explicit TensorBoardFile(LogFile log) : log_(std::move(log)) {}
  LogFile log_;
};

}  // namespace optimus
