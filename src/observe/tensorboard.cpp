// Implements tensorboard.h. The field numbers are from TensorFlow's event.proto and summary.proto.
#include "observe/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <vector>

namespace optimus {
namespace {

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = crc;
  }
  return table;
}();

std::string little_endian(std::uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// TFRecord files store masked CRCs, rotated and with an added constant, because a CRC of data that contains
// CRCs is weak.
std::string masked_crc(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8U, 4);
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

// A field consists of its number and wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes),
// followed by the value.
std::string integer_field(int number, std::int64_t value) {
  return varint(static_cast<unsigned>(number) << 3 | 0) + varint(static_cast<std::uint64_t>(value));
}
std::string double_field(int number, double value) {
  return varint(static_cast<unsigned>(number) << 3 | 1) +
         little_endian(std::bit_cast<std::uint64_t>(value), 8);
}
std::string bytes_field(int number, std::string_view value) {
  return varint(static_cast<unsigned>(number) << 3 | 2) + varint(value.size()) + std::string(value);
}
std::string float_field(int number, float value) {
  return varint(static_cast<unsigned>(number) << 3 | 5) +
         little_endian(std::bit_cast<std::uint32_t>(value), 4);
}

std::string event_start(Seconds wall_time, std::int64_t step) {
  return double_field(1, wall_time.value) + integer_field(2, step);
}

// If a process creates two files within one second, the name of the second file contains the next second, so
// the names are sorted by age.
Path unused_path(const Path& folder, Seconds wall_time) {
  std::array<char, 256> name{};
  const bool has_name = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  const std::string host = has_name ? name.data() : "localhost";
  std::error_code error;
  for (auto seconds = static_cast<std::int64_t>(wall_time.value);; ++seconds) {
    Path path = folder / fmt::format("events.out.tfevents.{}.{}.{}", seconds, host, ::getpid());
    if (!std::filesystem::exists(path, error)) return path;
  }
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

std::string tfrecord(std::string_view data) {
  const std::string length = little_endian(data.size(), 8);
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string scalar_event(Seconds wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars)
    summary += bytes_field(1, bytes_field(1, scalar.tag) + float_field(2, static_cast<float>(scalar.value)));
  return event_start(wall_time, step) + bytes_field(5, summary);
}

Outcome<TensorBoardFile> TensorBoardFile::create(FileSystem& files, const Path& folder, Seconds wall_time,
                                                 std::int64_t last_step) {
  Outcome<std::unique_ptr<WritableFile>> file = files.create(unused_path(folder, wall_time));
  if (!file) return tl::unexpected(file.error());
  TensorBoardFile result{LogFile(std::move(*file))};
  // A session_log with status START makes TensorBoard discard this step and later steps of other files.
  const std::string head =
      tfrecord(double_field(1, wall_time.value) + bytes_field(3, "brain.Event:2")) +
      tfrecord(event_start(wall_time, last_step + 1) + bytes_field(7, integer_field(1, 1)));
  if (Outcome<void> outcome = result.log_.write(head); !outcome) return tl::unexpected(outcome.error());
  return result;
}

Outcome<void> TensorBoardFile::append(const StepMetrics& metrics, Seconds wall_time) {
  std::vector<Scalar> scalars = {{"train/loss", metrics.loss},
                                 {"train/grad_norm", metrics.grad_norm},
                                 {"train/lr", metrics.learning_rate},
                                 {"train/tokens_per_second", metrics.tokens_per_second}};
  if (metrics.loss_scale) scalars.push_back({"train/loss_scale", *metrics.loss_scale});
  if (metrics.tflops) scalars.push_back({"train/tflops", *metrics.tflops});
  if (metrics.mfu) scalars.push_back({"train/mfu", *metrics.mfu});
  if (metrics.memory) scalars.push_back({"train/memory_bytes", static_cast<double>(metrics.memory->value)});
  if (metrics.validation_loss) scalars.push_back({"validation/loss", *metrics.validation_loss});
  return log_.write(tfrecord(scalar_event(wall_time, metrics.step, scalars)));
}

}  // namespace optimus
