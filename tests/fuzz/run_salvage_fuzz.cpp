// Any text as a message between ranks after a loss: survivor state, recovery order, or emergency checkpoint
// record. Each round-trips or leads to a one-line UserError.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "elastic/emergency_checkpoint.h"

namespace {

template <typename Parse>
void expect_same_again(const std::string& text_in, Parse parse) {
  try {
    const std::string once = optimus::text(parse(text_in));
    if (optimus::text(parse(once)) != once) std::abort();
  } catch (const optimus::UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
}

// Two ranks with equal state, one of which sends this text.
void plan_with(const std::string& text_in) {
  using namespace optimus;
  const Layout layout{.tensors = {{"weight", {8, 4}, 12, 0}},
                      .grids = {{2, 1, 1, {Rank{0}, Rank{1}}}},
                      .placements = {{{0, -1, {}}}}};
  try {
    const EmergencyCheckpointPlan plan = plan_emergency_checkpoint(layout, {parse_survivor_state(text_in)});
    if (plan.ranks.size() > 1 || (plan.is_whole() && plan.step < 0)) std::abort();
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text_in(reinterpret_cast<const char*>(data), size);
  expect_same_again(text_in, optimus::parse_survivor_state);
  expect_same_again(text_in, optimus::parse_emergency_checkpoint_order);
  expect_same_again(text_in, optimus::parse_emergency_checkpoint_part);
  plan_with(text_in);
  return 0;
}
