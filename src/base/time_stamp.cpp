// See time_stamp.h.
#include "base/time_stamp.h"

#include <fmt/format.h>

namespace optimus {
namespace {

constexpr std::string_view kTimeStampForm = "dddd-dd-dd dd:dd:dd.dddddd ";
static_assert(kTimeStampForm.size() == kTimeStampLength);

bool starts_with_time_stamp(std::string_view line) {
  if (line.size() < kTimeStampForm.size()) return false;
  for (std::size_t i = 0; i < kTimeStampForm.size(); ++i) {
    const bool is_digit = line[i] >= '0' && line[i] <= '9';
    if (kTimeStampForm[i] == 'd' ? !is_digit : line[i] != kTimeStampForm[i]) return false;
  }
  return true;
}

}  // namespace

std::string time_stamp(WallClock::time_point time) {
  using namespace std::chrono;
  const auto micros = duration_cast<microseconds>(time.time_since_epoch());
  const auto day = floor<days>(sys_time<microseconds>(micros));
  const year_month_day date(day);
  const auto micros_of_day = (sys_time<microseconds>(micros) - day).count();
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:06} ", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     micros_of_day / 3'600'000'000, micros_of_day / 60'000'000 % 60,
                     micros_of_day / 1'000'000 % 60, micros_of_day % 1'000'000);
}

std::optional<std::int64_t> find_time_stamp(std::string_view line) {
  using namespace std::chrono;
  if (!starts_with_time_stamp(line)) return std::nullopt;
  const auto number = [&](std::size_t begin, std::size_t count) {
    std::int64_t value = 0;
    for (const char digit : line.substr(begin, count)) value = 10 * value + (digit - '0');
    return value;
  };
  const year_month_day date(year(static_cast<int>(number(0, 4))), month(static_cast<unsigned>(number(5, 2))),
                            day(static_cast<unsigned>(number(8, 2))));
  if (!date.ok() || number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 60) return std::nullopt;
  const std::int64_t seconds =
      duration_cast<std::chrono::seconds>(sys_days(date).time_since_epoch()).count() + 3600 * number(11, 2) +
      60 * number(14, 2) + number(17, 2);
  return 1'000'000 * seconds + number(20, 6);
}

}  // namespace optimus
