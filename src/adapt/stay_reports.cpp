// Implements stay_reports.h.
#include "adapt/stay_reports.h"

#include <fmt/format.h>

#include <utility>

namespace optimus {

void StayReports::add_once(const std::string& key, StayDecision stay_decision) {
  if (reported_.insert(key).second) add(std::move(stay_decision));
}

void StayReports::add_for(const std::vector<Condition>& conditions, StayDecision stay_decision) {
  constexpr double kSevere = 1.3;
  std::string key;
  for (const Condition& condition : conditions)
    if (condition.factor >= kSevere)
      key += fmt::format("{} {} ", word_of(condition.cause), condition.location);
  if (key.empty()) return;
  key += stay_decision.reason;
  add_once(key, std::move(stay_decision));
}

std::optional<StayDecision> StayReports::take() {
  if (queue_.empty()) return std::nullopt;
  StayDecision first = std::move(queue_.front());
  queue_.pop_front();
  return first;
}

}  // namespace optimus
