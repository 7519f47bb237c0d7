// Runs rapidcheck with a given number of cases: `few` in a quick run, twenty times as many with
// OPTIMUS_LONG=1. On failure it prints the seed and the way to repeat the case.
#pragma once

#include <rapidcheck.h>

#include <cstdlib>
#include <iostream>
#include <string>

namespace optimus {

template <typename Property>
bool holds(const std::string& name, int few, Property&& property) {
  const char* is_long = std::getenv("OPTIMUS_LONG");
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = is_long != nullptr && std::string(is_long) == "1" ? 20 * few : few;
  rc::detail::TestMetadata metadata{name, name};
  const auto result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  if (result.template is<rc::detail::SuccessResult>()) return true;
  rc::detail::printResultMessage(result, std::cerr);
  std::cerr << std::endl;
  return false;
}

}  // namespace optimus
