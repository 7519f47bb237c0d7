// Any text as a worker's report, as a worker's environment settings, or as a rank's join request: a value
// that round-trips, or a one-line UserError.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "launch/join_request.h"
#include "rundir/worker_protocol.h"

namespace {

template <typename Parse>
void expect_same_again(const std::string& text_in, Parse parse) {
  try {
    const std::string once = optimus::text(parse(text_in));
    if (once.find('\n') != std::string::npos || optimus::text(parse(once)) != once) std::abort();
  } catch (const optimus::UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  const std::string text_in(reinterpret_cast<const char*>(data), size);
  expect_same_again(text_in, parse_worker_report);
  expect_same_again(text_in, parse_rank_join_request);
  expect_same_again(text_in, [](const std::string& value) {
    return *worker_spec([&](const std::string&) { return std::optional(value); });
  });
  try {
    const Json json = parse_json(text_in, "fuzz");
    const std::vector<PresentRank> ranks = parse_present_ranks(JsonView(json, "fuzz"));
    if (ranks_json(ranks) != json) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
