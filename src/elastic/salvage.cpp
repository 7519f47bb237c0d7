// Implements salvage.h.
#include "elastic/salvage.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace optimus {
namespace {

constexpr int kMostStandingRanks = 1 << 20;

std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::vector<int> parse_salvage_ranks(const JsonView& view) {
  std::vector<int> result;
  for (const JsonView& element : view.elements())
    result.push_back(static_cast<int>(element.integer(0, kMostStandingRanks)));
  return result;
}

// The newest step whose update is complete on some rank.
std::optional<std::int64_t> newest_step(const std::vector<Standing>& standings) {
  std::optional<std::int64_t> newest;
  for (const Standing& standing : standings)
    if (!standing.is_torn) newest = std::max(newest.value_or(0), standing.state.step);
  return newest;
}

}  // namespace

// JSON has no representation of values that are not finite, which a gate's sums may be.
Json exact_numbers(const std::vector<double>& numbers) {
  Json result = Json::array();
  for (const double number : numbers) result.push_back(fmt::format("{:a}", number));
  return result;
}

std::vector<double> parse_exact_numbers(const JsonView& view) {
  std::vector<double> result;
  for (const JsonView& element : view.elements()) {
    char* end = nullptr;
    const std::string& word = element.text();
    result.push_back(std::strtod(word.c_str(), &end));
    if (word.empty() || *end != '\0') element.refuse("a number");
  }
  return result;
}

std::string text(const Standing& standing) {
  return compact({{"rank", standing.rank},
                  {"state", training_state_text(standing.state)},
                  {"epoch", standing.epoch},
                  {"torn", standing.is_torn},
                  {"at_gate", standing.is_at_gate},
                  {"gate", exact_numbers(standing.gate)},
                  {"missing", standing.missing},
                  {"earlier_epoch", standing.earlier_epoch},
                  {"leaves", standing.leaves},
                  {"why_failed", standing.why_failed}});
}

Standing parse_standing(const std::string& text) {
  const Json json = parse_json(text, "a rank's survivor state");
  const JsonView view(json, "a rank's survivor state");
  Standing standing;
  standing.rank = static_cast<int>(view.at("rank").integer(0, kMostStandingRanks));
  standing.state = parse_training_state(view.at("state").text(), "a rank's survivor state");
  standing.epoch = view.at("epoch").integer(0);
  standing.is_torn = view.at("torn").boolean(), standing.is_at_gate = view.at("at_gate").boolean();
  standing.gate = parse_exact_numbers(view.at("gate")),
  standing.missing = parse_salvage_ranks(view.at("missing"));
  standing.earlier_epoch = view.at("earlier_epoch").integer(-1),
  standing.leaves = view.at("leaves").boolean();
  standing.why_failed = view.at("why_failed").text();
  return standing;
}

SalvagePlan plan_salvage(const Layout& layout, const std::vector<Standing>& standings) {
  SalvagePlan plan;
  std::vector<bool> is_there(static_cast<std::size_t>(num_ranks(layout)));
  const std::optional<std::int64_t> newest = newest_step(standings);
  if (newest) plan.step = *newest;
  for (const Standing& standing : standings)
    if (newest && !standing.is_torn && standing.state.step == *newest && plan.gate.empty())
      plan.gate = standing.gate;
  for (const Standing& standing : standings) {
    const auto rank = static_cast<std::size_t>(standing.rank);
    if (rank >= is_there.size() || is_there[rank]) continue;
    const bool follows = standing.is_at_gate && standing.state.step == plan.step - 1 && !plan.gate.empty();
    is_there[rank] = !standing.is_torn && (standing.state.step == plan.step || follows);
    (is_there[rank] ? plan.ranks : plan.left_over).push_back(standing.rank);
  }
  std::sort(plan.ranks.begin(), plan.ranks.end());
  plan.lost = boxes_to_store(layout, is_there).lost;
  return plan;
}

std::string text(const SalvageOrder& order) {
  return compact({{"step", order.step},
                  {"ranks", order.ranks},
                  {"gate", exact_numbers(order.gate)},
                  {"folder", order.folder.string()}});
}

SalvageOrder parse_salvage_order(const std::string& text) {
  const Json json = parse_json(text, "the emergency checkpoint order");
  const JsonView view(json, "the emergency checkpoint order");
  return {view.at("step").integer(0), parse_salvage_ranks(view.at("ranks")),
          parse_exact_numbers(view.at("gate")), view.at("folder").text()};
}

std::string text(const SalvagePart& part) {
  return compact({{"why", part.why}, {"state", training_state_text(part.state)}, {"metrics", part.metrics}});
}

SalvagePart parse_salvage_part(const std::string& text) {
  const Json json = parse_json(text, "a rank's part of an emergency checkpoint");
  const JsonView view(json, "a rank's part of an emergency checkpoint");
  return {view.at("why").text(),
          parse_training_state(view.at("a rank's part of an emergency checkpoint").text(),
                               "a rank's part of an emergency checkpoint"),
          view.at("metrics").text()};
}

std::string SalvageKeys::somebody() const { return fmt::format("salvage/{}/somebody", generation); }
std::string SalvageKeys::standing(int rank) const {
  return fmt::format("salvage/{}/standing/{}", generation, rank);
}
std::string SalvageKeys::part(int rank) const { return fmt::format("salvage/{}/part/{}", generation, rank); }
std::string SalvageKeys::bring() const { return fmt::format("salvage/{}/bring", generation); }
std::string SalvageKeys::brought(int rank) const {
  return fmt::format("salvage/{}/brought/{}", generation, rank);
}
std::string SalvageKeys::order() const { return fmt::format("salvage/{}/order", generation); }
std::string SalvageKeys::regroup() const { return fmt::format("salvage/{}/regroup", generation); }

std::string lost_text(const Layout& layout, const std::vector<HeldBox>& lost) {
  constexpr std::size_t kNamed = 2;
  std::string result;
  for (std::size_t i = 0; i < std::min(kNamed, lost.size()); ++i)
    result += fmt::format("{}{} {}", i > 0 ? ", " : "",
                          layout.tensors[static_cast<std::size_t>(lost[i].tensor)].name, text(lost[i].box));
  if (lost.size() > kNamed) result += fmt::format(" and {} more", lost.size() - kNamed);
  return result;
}

}  // namespace optimus
