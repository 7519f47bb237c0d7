// Implements regroup.h.
#include "elastic/regroup.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "reshard/plan_change.h"

namespace optimus {
namespace {

constexpr int kMostSeats = 1 << 20;

const std::vector<std::pair<RegroupOrder::Source, std::string>> kSources = {
    {RegroupOrder::Source::live, "live"},
    {RegroupOrder::Source::checkpoint, "checkpoint"},
    {RegroupOrder::Source::begin, "begin"}};

// Which ranks have which boxes of which step, under one epoch's plan.
struct Found {
  std::int64_t epoch = 0;
  SalvagePlan salvage;
  TrainingState state{};
};

// What a rank has under an epoch's plan, if anything. A rank that has completed a move still has its state
// from before the move, which is complete.
std::optional<Standing> standing_under(const Standing& standing, std::int64_t epoch) {
  Standing result = standing;
  if (standing.epoch == epoch) return standing.is_torn ? std::nullopt : std::optional(result);
  if (standing.earlier_epoch != epoch) return std::nullopt;
  result.is_torn = result.is_at_gate = false;
  return result;
}

// The newest epoch whose state is complete. A rank has a newer one only if all live ranks have it.
std::optional<Found> find_state(const RegroupFacts& facts, const std::vector<Standing>& standings) {
  std::set<std::int64_t, std::greater<>> epochs;
  for (const Standing& standing : standings) epochs.insert({standing.epoch, standing.earlier_epoch});
  for (const std::int64_t epoch : epochs) {
    const auto plan = facts.plans.find(epoch);
    if (plan == facts.plans.end()) continue;
    std::vector<Standing> holding;
    for (const Standing& standing : standings)
      if (const auto held = standing_under(standing, epoch)) holding.push_back(*held);
    Found found{epoch,
                plan_salvage(layout_with_buddies(plan->second, facts.model, StateKind::optimizer), holding)};
    if (!found.salvage.is_whole()) continue;
    for (const Standing& standing : holding)
      if (standing.state.step == found.salvage.step) found.state = standing.state;
    return found;
  }
  return std::nullopt;
}

// Staying ranks first, each part sorted by worker id.
void take_members(const RegroupFacts& facts, const std::vector<Standing>& standings, RegroupOrder& order) {
  std::vector<int> staying = facts.comers, leaving;
  for (const Standing& standing : standings) {
    const int seat = facts.membership.seats.at(static_cast<std::size_t>(standing.rank));
    (standing.leaves ? leaving : staying).push_back(seat);
  }
  std::sort(staying.begin(), staying.end()), std::sort(leaving.begin(), leaving.end());
  order.membership.generation = facts.membership.generation + 1;
  order.num_staying = static_cast<int>(staying.size());
  order.membership.seats = staying;
  order.membership.seats.insert(order.membership.seats.end(), leaving.begin(), leaving.end());
}

// Devices of ranks without usable state are numbered after all ranks. Devices that were lost when this
// generation began already are, in case the generation ends before all ranks have its plan.
Plan renumbered(const RegroupFacts& facts, const Found& found, const RegroupOrder& order) {
  const std::set<int> useful(found.salvage.ranks.begin(), found.salvage.ranks.end());
  int next = static_cast<int>(order.membership.seats.size());
  std::vector<int> device_of;
  const Plan& plan = facts.plans.at(found.epoch);
  const int num_ranks = std::max(num_device_numbers(plan), static_cast<int>(facts.membership.seats.size()));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int now = useful.contains(rank)
                        ? rank_of(order.membership, facts.membership.seats[static_cast<std::size_t>(rank)])
                        : -1;
    device_of.push_back(now >= 0 ? now : next++);
  }
  return with_devices(plan, device_of);
}

std::string listed(const std::vector<std::string>& words) {
  std::string result;
  for (std::size_t i = 0; i < words.size(); ++i)
    result += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return result;
}

// A rank that has not reported is lost, unless it was about to leave.
std::vector<std::string> who_is_lost(const RegroupFacts& facts, const std::vector<Standing>& standings) {
  std::set<int> standing_ranks;
  for (const Standing& standing : standings) standing_ranks.insert(standing.rank);
  std::vector<std::string> result;
  for (int rank = 0; rank < facts.num_staying; ++rank) {
    if (standing_ranks.contains(rank)) continue;
    const auto how = facts.lost.find(facts.membership.seats[static_cast<std::size_t>(rank)]);
    result.push_back(how == facts.lost.end() ? fmt::format("rank {}", rank) : how->second);
  }
  return result;
}

void describe(const RegroupFacts& facts, const std::vector<Standing>& standings, RegroupOrder& order) {
  const std::vector<std::string> lost = who_is_lost(facts, standings);
  std::vector<std::string> left, come, parts;
  for (const Standing& standing : standings)
    if (standing.leaves) left.push_back(fmt::format("rank {}", standing.rank));
  for (const int seat : facts.comers) come.push_back(fmt::format("worker {}", seat));
  if (!lost.empty()) parts.push_back("lost " + listed(lost));
  if (!left.empty())
    parts.push_back(fmt::format("{} {}", listed(left), left.size() > 1 ? "leave" : "leaves"));
  if (!come.empty()) parts.push_back(fmt::format("{} {}", listed(come), come.size() > 1 ? "join" : "joins"));
  order.what = parts.empty() ? "the ranks lost contact with each other" : listed(parts);
  order.kind = !lost.empty() || parts.empty() ? "recover" : !left.empty() ? "drain" : "join";
}

void take_from_files(const RegroupFacts& facts, const std::vector<Standing>& standings, RegroupOrder& order) {
  std::int64_t newest = 0;
  for (const Standing& standing : standings) {
    newest = std::max(newest, standing.state.step);
    order.epoch = std::max(order.epoch, standing.epoch);
    order.state.seed = standing.state.seed, order.state.precision = standing.state.precision;
  }
  order.source = RegroupOrder::Source::begin;
  // A checkpoint that is newer than the state of all ranks belongs to another branch of the run's history.
  if (const auto kept = facts.find_checkpoint(); kept && kept->second.step <= newest) {
    order.source = RegroupOrder::Source::checkpoint;
    order.checkpoint = kept->first, order.state = kept->second;
  }
  order.num_steps_lost = newest - order.state.step;
  order.from = order.to;
}

// Plans are made for the phase that the run began with, while the state may be in another one. If ranks are
// lost between two phases, the old batch and length are named in the message.
Plan in_its_phase(const RegroupFacts& facts, const Plan& plan, RegroupOrder& order) {
  if (facts.phases.empty()) return plan;
  const std::vector<Phase> phases = with_begins(facts.phases, order.state.phase_begins);
  const Phase& phase = phase_at(phases, order.state.step);
  const Phase before{0, order.from.batch, order.from.sequence_length};
  if (const std::string words = text(before, phase); before.batch > 0 && !words.empty())
    order.what += fmt::format("; phase: {}", words);
  return with_batch(plan, phase.batch, phase.sequence_length);
}

}  // namespace

tl::expected<RegroupOrder, std::string> plan_regroup(const RegroupFacts& facts,
                                                     const std::vector<Standing>& standings) {
  for (const Standing& standing : standings)
    if (!standing.why_failed.empty())
      return tl::unexpected(fmt::format("rank {} failed: {}", standing.rank, standing.why_failed));
  RegroupOrder order;
  take_members(facts, standings, order);
  if (order.num_staying == 0) return tl::unexpected(std::string("no rank stays"));
  describe(facts, standings, order);
  try {
    const std::optional<Found> found = find_state(facts, standings);
    if (!found) {
      order.to = facts.choose(order.num_staying, std::nullopt);
      take_from_files(facts, standings, order);
      order.from = {};
      order.from = order.to = in_its_phase(facts, order.to, order);
      return order;
    }
    order.epoch = found->epoch, order.state = found->state, order.gate = found->salvage.gate;
    order.from = renumbered(facts, *found, order);
    const WhereStateIs state{order.from, static_cast<int>(order.membership.seats.size()), order.num_staying};
    const Plan chosen = in_its_phase(facts, facts.choose(order.num_staying, state), order);
    order.to = change_plan(order.from, chosen, facts.model, ranks_there(state)).to;
    return order;
  } catch (const UserError& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

std::string text(const RegroupOrder& order) {
  std::string source;
  for (const auto& [value, word] : kSources)
    if (value == order.source) source = word;
  const OrderedJson json{{"generation", order.membership.generation},
                         {"seats", order.membership.seats},
                         {"staying", order.num_staying},
                         {"seats_taken", order.num_seats},
                         {"from", to_json(order.from)},
                         {"to", to_json(order.to)},
                         {"source", source},
                         {"checkpoint", order.checkpoint.string()},
                         {"state", training_state_text(order.state)},
                         {"epoch", order.epoch},
                         {"gate", exact_numbers(order.gate)},
                         {"steps_lost", order.num_steps_lost},
                         {"kind", order.kind},
                         {"what", order.what}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RegroupOrder parse_regroup_order(const std::string& text) {
  const std::string where = "the membership change order";
  const Json json = parse_json(text, where);
  const JsonView view(json, where);
  RegroupOrder order;
  order.membership.generation = static_cast<int>(view.at("generation").integer(1, kMostSeats));
  for (const JsonView& seat : view.at("seats").elements())
    order.membership.seats.push_back(static_cast<int>(seat.integer(0, kMostSeats)));
  const auto size = std::ssize(order.membership.seats);
  order.num_staying = static_cast<int>(view.at("staying").integer(1, size));
  order.num_seats = static_cast<int>(view.at("seats_taken").integer(0, kMostSeats + 1));
  order.from = parse_plan(view.at("from").raw().dump(), where);
  order.to = parse_plan(view.at("to").raw().dump(), where);
  bool is_known = false;
  for (const auto& [value, word] : kSources)
    if (view.at("source").text() == word) order.source = value, is_known = true;
  if (!is_known) view.at("source").refuse("one of live, checkpoint, begin");
  order.checkpoint = view.at("checkpoint").text();
  order.state = parse_training_state(view.at("state").text(), where);
  order.epoch = view.at("epoch").integer(0), order.gate = parse_exact_numbers(view.at("gate"));
  order.num_steps_lost = view.at("steps_lost").integer(0), order.what = view.at("what").text();
  order.kind = view.at("kind").text();
  return order;
}

}  // namespace optimus
