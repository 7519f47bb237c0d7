// Implements emergency_checkpoint.h.
#include "elastic/emergency_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace optimus {
namespace {

constexpr int kMaxRankNumber = 1 << 20;

std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::vector<int> parse_ranks(const JsonView& view) {
  std::vector<int> result;
  for (const JsonView& element : view.elements())
    result.push_back(static_cast<int>(element.integer(0, kMaxRankNumber)));
  return result;
}

// The latest step whose update is complete on at least one rank.
std::optional<std::int64_t> newest_step(const std::vector<SurvivorState>& survivor_states) {
  std::optional<std::int64_t> newest;
  for (const SurvivorState& survivor_state : survivor_states)
    if (!survivor_state.is_torn) newest = std::max(newest.value_or(0), survivor_state.state.step);
  return newest;
}

}  // namespace

// Writes numbers as strings, because JSON cannot represent non-finite values and the gradient sums of a step
// may be non-finite.
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

std::string text(const SurvivorState& survivor_state) {
  return compact({{"rank", survivor_state.rank},
                  {"state", training_state_text(survivor_state.state)},
                  {"epoch", survivor_state.epoch},
                  {"torn", survivor_state.is_torn},
                  {"at_gate", survivor_state.is_at_gate},
                  {"gate", exact_numbers(survivor_state.gate)},
                  {"missing", survivor_state.missing},
                  {"earlier_epoch", survivor_state.earlier_epoch},
                  {"leaves", survivor_state.is_leaving},
                  {"why_failed", survivor_state.failure_reason}});
}

SurvivorState parse_survivor_state(const std::string& text) {
  const Json json = parse_json(text, "a rank's survivor state");
  const JsonView view(json, "a rank's survivor state");
  SurvivorState survivor_state;
  survivor_state.rank = static_cast<int>(view.at("rank").integer(0, kMaxRankNumber));
  survivor_state.state = parse_training_state(view.at("state").text(), "a rank's survivor state");
  survivor_state.epoch = view.at("epoch").integer(0);
  survivor_state.is_torn = view.at("torn").boolean(),
  survivor_state.is_at_gate = view.at("at_gate").boolean();
  survivor_state.gate = parse_exact_numbers(view.at("gate")),
  survivor_state.missing = parse_ranks(view.at("missing"));
  survivor_state.earlier_epoch = view.at("earlier_epoch").integer(-1),
  survivor_state.is_leaving = view.at("leaves").boolean();
  survivor_state.failure_reason = view.at("why_failed").text();
  return survivor_state;
}

EmergencyCheckpointPlan plan_emergency_checkpoint(const Layout& layout,
                                                  const std::vector<SurvivorState>& survivor_states) {
  EmergencyCheckpointPlan plan;
  std::vector<bool> is_present(static_cast<std::size_t>(num_ranks(layout)));
  const std::optional<std::int64_t> newest = newest_step(survivor_states);
  if (newest) plan.step = *newest;
  for (const SurvivorState& survivor_state : survivor_states)
    if (newest && !survivor_state.is_torn && survivor_state.state.step == *newest && plan.gate.empty())
      plan.gate = survivor_state.gate;
  for (const SurvivorState& survivor_state : survivor_states) {
    const auto rank = static_cast<std::size_t>(survivor_state.rank);
    if (rank >= is_present.size() || is_present[rank]) continue;
    const bool can_catch_up =
        survivor_state.is_at_gate && survivor_state.state.step == plan.step - 1 && !plan.gate.empty();
    is_present[rank] = !survivor_state.is_torn && (survivor_state.state.step == plan.step || can_catch_up);
    (is_present[rank] ? plan.ranks : plan.outdated_ranks).push_back(survivor_state.rank);
  }
  std::sort(plan.ranks.begin(), plan.ranks.end());
  plan.lost = boxes_to_save(layout, is_present).lost;
  return plan;
}

std::string text(const EmergencyCheckpointOrder& order) {
  return compact({{"step", order.step},
                  {"ranks", order.ranks},
                  {"gate", exact_numbers(order.gate)},
                  {"folder", order.folder.string()}});
}

EmergencyCheckpointOrder parse_emergency_checkpoint_order(const std::string& text) {
  const Json json = parse_json(text, "the emergency checkpoint order");
  const JsonView view(json, "the emergency checkpoint order");
  return {view.at("step").integer(0), parse_ranks(view.at("ranks")), parse_exact_numbers(view.at("gate")),
          view.at("folder").text()};
}

std::string text(const EmergencyCheckpointPart& part) {
  return compact({{"why", part.why}, {"state", training_state_text(part.state)}, {"metrics", part.metrics}});
}

EmergencyCheckpointPart parse_emergency_checkpoint_part(const std::string& text) {
  const Json json = parse_json(text, "a rank's part of an emergency checkpoint");
  const JsonView view(json, "a rank's part of an emergency checkpoint");
  return {view.at("why").text(),
          parse_training_state(view.at("state").text(), "a rank's part of an emergency checkpoint"),
          view.at("metrics").text()};
}

std::string RecoveryKeys::first_report() const { return fmt::format("recovery/{}/first_report", generation); }
std::string RecoveryKeys::survivor_state(int rank) const {
  return fmt::format("recovery/{}/survivor/{}", generation, rank);
}
std::string RecoveryKeys::part(int rank) const {
  return fmt::format("recovery/{}/part/{}", generation, rank);
}
std::string RecoveryKeys::export_request() const { return fmt::format("recovery/{}/export", generation); }
std::string RecoveryKeys::exported(int rank) const {
  return fmt::format("recovery/{}/exported/{}", generation, rank);
}
std::string RecoveryKeys::order() const { return fmt::format("recovery/{}/order", generation); }
std::string RecoveryKeys::change_membership() const {
  return fmt::format("recovery/{}/membership", generation);
}

std::string lost_text(const Layout& layout, const std::vector<TensorBox>& lost) {
  constexpr std::size_t kMaxNamed = 2;
  std::string result;
  for (std::size_t i = 0; i < std::min(kMaxNamed, lost.size()); ++i)
    result += fmt::format("{}{} {}", i > 0 ? ", " : "",
                          layout.tensors[static_cast<std::size_t>(lost[i].tensor)].name, text(lost[i].box));
  if (lost.size() > kMaxNamed) result += fmt::format(" and {} more", lost.size() - kMaxNamed);
  return result;
}

}  // namespace optimus
