// Implements stay_reports.h.
#include "adapt/stay_reports.h"

#include <fmt/format.h>

#include <utility>

namespace optimus {

void StayReports::add_once(const std::string& key, StayDecision stay) {
  if (reported_.insert(key).second) add(std::move(stay));
}

void StayReports::add_for(const std::vector<Condition>& conditions, StayDecision stay) {
  constexpr double kSevere = 1.3;
  std::string key;
  for (const Condition& one : conditions)
    if (one.factor >= kSevere) key += fmt::format("{} {} ", word_of(one.cause), one.where);
  if (key.empty()) return;
  key += stay.reason;
  add_once(key, std::move(stay));
}

std::optional<StayDecision> StayReports::take() {
  if (queue_.empty()) return std::nullopt;
  StayDecision first = std::move(queue_.front());
  queue_.pop_front();
  return first;
}

}  // namespace optimus
