// Implements membership_change.h.
#include "elastic/membership_change.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "reshard/plan_change.h"

namespace optimus {
namespace {

constexpr int kMaxWorkerIds = 1 << 20;

const std::vector<std::pair<MembershipChange::Source, std::string>> kSources = {
    {MembershipChange::Source::live, "live"},
    {MembershipChange::Source::checkpoint, "checkpoint"},
    {MembershipChange::Source::begin, "begin"}};

// The state that the ranks have in the layout of one plan epoch.
struct CompleteState {
  std::int64_t epoch = 0;
  EmergencyCheckpointPlan emergency_checkpoint;
  TrainingState state{};
};

// The state that a rank has in the layout of a plan epoch, if any. After a rank has moved state to a new
// plan, it still has its state from before the move.
std::optional<SurvivorState> state_under_epoch(const SurvivorState& survivor_state, std::int64_t epoch) {
  SurvivorState result = survivor_state;
  if (survivor_state.epoch == epoch) return survivor_state.is_torn ? std::nullopt : std::optional(result);
  if (survivor_state.earlier_epoch != epoch) return std::nullopt;
  result.is_torn = result.is_at_gate = false;
  return result;
}

// Finds the newest plan epoch whose state is complete. There is one, because a rank drops the state of an
// epoch only after all live ranks have the state of the next epoch.
std::optional<CompleteState> find_state(const MembershipChangeInputs& inputs,
                                        const std::vector<SurvivorState>& survivor_states) {
  std::set<std::int64_t, std::greater<>> epochs;
  for (const SurvivorState& survivor_state : survivor_states)
    epochs.insert({survivor_state.epoch, survivor_state.earlier_epoch});
  for (const std::int64_t epoch : epochs) {
    const auto plan = inputs.plans.find(epoch);
    if (plan == inputs.plans.end()) continue;
    std::vector<SurvivorState> states;
    for (const SurvivorState& survivor_state : survivor_states)
      if (const auto state = state_under_epoch(survivor_state, epoch)) states.push_back(*state);
    CompleteState result{
        epoch, plan_emergency_checkpoint(layout_with_copies(plan->second, inputs.model, StateKind::optimizer),
                                         states)};
    if (!result.emergency_checkpoint.is_whole()) continue;
    for (const SurvivorState& survivor_state : states)
      if (survivor_state.state.step == result.emergency_checkpoint.step) result.state = survivor_state.state;
    return result;
  }
  return std::nullopt;
}

// Staying ranks come first, then leaving ranks, both sorted by worker id.
void assign_members(const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states,
                    MembershipChange& order) {
  std::vector<int> staying = inputs.joining_workers, leaving;
  for (const SurvivorState& survivor_state : survivor_states) {
    const int worker_id = inputs.membership.worker_ids.at(static_cast<std::size_t>(survivor_state.rank));
    (survivor_state.is_leaving ? leaving : staying).push_back(worker_id);
  }
  std::sort(staying.begin(), staying.end()), std::sort(leaving.begin(), leaving.end());
  order.membership.generation = inputs.membership.generation + 1;
  order.num_staying = static_cast<int>(staying.size());
  order.membership.worker_ids = staying;
  order.membership.worker_ids.insert(order.membership.worker_ids.end(), leaving.begin(), leaving.end());
}

// Devices of ranks without usable state are numbered after all ranks. Devices that were already lost when
// this generation began have such indices too. They are kept in case the generation ends before all ranks
// have its plan.
Plan renumber_devices(const MembershipChangeInputs& inputs, const CompleteState& complete_state,
                      const MembershipChange& order) {
  const std::set<int> ranks_with_state(complete_state.emergency_checkpoint.ranks.begin(),
                                       complete_state.emergency_checkpoint.ranks.end());
  int next_device = static_cast<int>(order.membership.worker_ids.size());
  std::vector<int> device_of;
  const Plan& plan = inputs.plans.at(complete_state.epoch);
  const int num_ranks =
      std::max(num_device_numbers(plan), static_cast<int>(inputs.membership.worker_ids.size()));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int new_rank =
        ranks_with_state.contains(rank)
            ? rank_of(order.membership, inputs.membership.worker_ids[static_cast<std::size_t>(rank)])
            : -1;
    device_of.push_back(new_rank >= 0 ? new_rank : next_device++);
  }
  return with_devices(plan, device_of);
}

std::string joined_text(const std::vector<std::string>& items) {
  std::string result;
  for (std::size_t i = 0; i < items.size(); ++i)
    result += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  return result;
}

// Ranks that have not reported are lost, unless they were about to leave.
std::vector<std::string> describe_lost_ranks(const MembershipChangeInputs& inputs,
                                             const std::vector<SurvivorState>& survivor_states) {
  std::set<int> reporting_ranks;
  for (const SurvivorState& survivor_state : survivor_states) reporting_ranks.insert(survivor_state.rank);
  std::vector<std::string> result;
  for (int rank = 0; rank < inputs.num_staying; ++rank) {
    if (reporting_ranks.contains(rank)) continue;
    const auto reason = inputs.lost.find(inputs.membership.worker_ids[static_cast<std::size_t>(rank)]);
    result.push_back(reason == inputs.lost.end() ? fmt::format("rank {}", rank) : reason->second);
  }
  return result;
}

void describe(const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states,
              MembershipChange& order) {
  const std::vector<std::string> lost_ranks = describe_lost_ranks(inputs, survivor_states);
  std::vector<std::string> leaving, joining, parts;
  for (const SurvivorState& survivor_state : survivor_states)
    if (survivor_state.is_leaving) leaving.push_back(fmt::format("rank {}", survivor_state.rank));
  for (const int worker_id : inputs.joining_workers) joining.push_back(fmt::format("worker {}", worker_id));
  if (!lost_ranks.empty()) parts.push_back("lost " + joined_text(lost_ranks));
  if (!leaving.empty())
    parts.push_back(fmt::format("{} {}", joined_text(leaving), leaving.size() > 1 ? "leave" : "leaves"));
  if (!joining.empty())
    parts.push_back(fmt::format("{} {}", joined_text(joining), joining.size() > 1 ? "join" : "joins"));
  order.description = parts.empty() ? "the ranks lost contact with each other" : joined_text(parts);
  order.kind = !lost_ranks.empty() || parts.empty() ? "recover" : !leaving.empty() ? "drain" : "join";
}

void use_checkpoint(const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states,
                    MembershipChange& order) {
  std::int64_t newest = 0;
  for (const SurvivorState& survivor_state : survivor_states) {
    newest = std::max(newest, survivor_state.state.step);
    order.epoch = std::max(order.epoch, survivor_state.epoch);
    order.state.seed = survivor_state.state.seed, order.state.precision = survivor_state.state.precision;
  }
  order.source = MembershipChange::Source::begin;
  // A checkpoint that is newer than the state of all ranks is from before a rollback, so it is not used.
  if (const auto checkpoint = inputs.find_checkpoint(); checkpoint && checkpoint->second.step <= newest) {
    order.source = MembershipChange::Source::checkpoint;
    order.checkpoint = checkpoint->first, order.state = checkpoint->second;
  }
  order.num_steps_lost = newest - order.state.step;
  order.from = order.to;
}

// Plans are made for the first training phase of the run, but the state may be in a later phase. If ranks are
// lost between two phases, the message includes the change of batch size and sequence length.
Plan with_phase_of_state(const MembershipChangeInputs& inputs, const Plan& plan, MembershipChange& order) {
  if (inputs.phases.empty()) return plan;
  const std::vector<Phase> phases = with_decided_starts(inputs.phases, order.state.phase_begins);
  const Phase& phase = phase_at(phases, order.state.step);
  const Phase previous_phase{0, order.from.batch, order.from.sequence_length};
  if (const std::string phase_text = text(previous_phase, phase);
      previous_phase.batch > 0 && !phase_text.empty())
    order.description += fmt::format("; phase: {}", phase_text);
  return with_batch(plan, phase.batch, phase.sequence_length);
}

}  // namespace

tl::expected<MembershipChange, std::string> plan_membership_change(
    const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states) {
  for (const SurvivorState& survivor_state : survivor_states)
    if (!survivor_state.failure_reason.empty())
      return tl::unexpected(
          fmt::format("rank {} failed: {}", survivor_state.rank, survivor_state.failure_reason));
  MembershipChange order;
  assign_members(inputs, survivor_states, order);
  if (order.num_staying == 0) return tl::unexpected(std::string("no rank remains"));
  describe(inputs, survivor_states, order);
  try {
    const std::optional<CompleteState> complete_state = find_state(inputs, survivor_states);
    if (!complete_state) {
      Feasible<Plan> chosen = inputs.choose(order.num_staying, std::nullopt);
      if (!chosen) return tl::unexpected(chosen.error().why);
      order.to = *std::move(chosen);
      use_checkpoint(inputs, survivor_states, order);
      order.from = {};
      order.from = order.to = with_phase_of_state(inputs, order.to, order);
      return order;
    }
    order.epoch = complete_state->epoch, order.state = complete_state->state,
    order.gate = complete_state->emergency_checkpoint.gate;
    order.from = renumber_devices(inputs, *complete_state, order);
    const StateLocation state{order.from, static_cast<int>(order.membership.worker_ids.size()),
                              order.num_staying};
    const Feasible<Plan> chosen = inputs.choose(order.num_staying, state);
    if (!chosen) return tl::unexpected(chosen.error().why);
    const auto change = find_plan_change(order.from, with_phase_of_state(inputs, *chosen, order),
                                         inputs.model, present_ranks(state));
    if (!change) return tl::unexpected(change.error().why);
    order.to = change->to;
    return order;
  } catch (const ReportedError& error) {
    return tl::unexpected(std::string(error.what()));
  }
}

std::string text(const MembershipChange& order) {
  std::string source;
  for (const auto& [value, word] : kSources)
    if (value == order.source) source = word;
  const OrderedJson json{{"generation", order.membership.generation},
                         {"seats", order.membership.worker_ids},
                         {"staying", order.num_staying},
                         {"seats_taken", order.num_worker_ids},
                         {"from", to_json(order.from)},
                         {"to", to_json(order.to)},
                         {"source", source},
                         {"checkpoint", order.checkpoint.string()},
                         {"state", training_state_text(order.state)},
                         {"epoch", order.epoch},
                         {"gate", exact_numbers(order.gate)},
                         {"steps_lost", order.num_steps_lost},
                         {"kind", order.kind},
                         {"what", order.description}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

MembershipChange parse_membership_change(const std::string& text) {
  const std::string location = "the membership change order";
  const Json json = parse_json(text, location);
  const JsonView view(json, location);
  MembershipChange order;
  order.membership.generation = static_cast<int>(view.at("generation").integer(1, kMaxWorkerIds));
  for (const JsonView& worker_id : view.at("seats").elements())
    order.membership.worker_ids.push_back(static_cast<int>(worker_id.integer(0, kMaxWorkerIds)));
  const auto size = std::ssize(order.membership.worker_ids);
  order.num_staying = static_cast<int>(view.at("staying").integer(1, size));
  order.num_worker_ids = static_cast<int>(view.at("seats_taken").integer(0, kMaxWorkerIds + 1));
  order.from = parse_plan(view.at("from").raw().dump(), location);
  order.to = parse_plan(view.at("to").raw().dump(), location);
  bool is_known = false;
  for (const auto& [value, word] : kSources)
    if (view.at("source").text() == word) order.source = value, is_known = true;
  if (!is_known) view.at("source").refuse("\"live\", \"checkpoint\" or \"begin\"");
  order.checkpoint = view.at("checkpoint").text();
  order.state = parse_training_state(view.at("state").text(), location);
  order.epoch = view.at("epoch").integer(0), order.gate = parse_exact_numbers(view.at("gate"));
  order.num_steps_lost = view.at("steps_lost").integer(0), order.description = view.at("what").text();
  order.kind = view.at("kind").text();
  return order;
}

}  // namespace optimus
