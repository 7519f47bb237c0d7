// Files of learned policies (policy/learned_policy.h): refused with one line, or read completely.
#include <cmath>
#include <span>

#include "base/error.h"
#include "policy/learned_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  try {
    const LearnedPolicy network = parse_learned_policy(std::as_bytes(std::span(data, size)), "input");
    for (const float number : network.numbers) ensure(std::isfinite(number), "a policy with {}", number);
  } catch (const UserError&) {
  }
  return 0;
}
