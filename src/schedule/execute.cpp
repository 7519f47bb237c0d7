// Implements execute.h. Matching instructions (messages, collectives) are merged into one event. The events
// are then processed in topological order.
#include "schedule/execute.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace optimus {
namespace {

bool is_send(Op op) { return op == Op::send || op == Op::send_copy; }
bool is_receive(Op op) { return op == Op::receive || op == Op::receive_copy; }

// Kinds of messages that are ordered independently of each other: activations, gradients, shard copies.
int message_kind(const Instruction& i) {
  if (i.op == Op::send_copy || i.op == Op::receive_copy) return 2;
  return i.is_backward ? 1 : 0;
}

// Assigns an event id to each instruction. Matching instructions share one event.
class EventMatcher {
 public:
  explicit EventMatcher(const std::vector<Program>& programs) : programs_(programs) {
    for (const Program& program : programs) event_of_.emplace_back(program.instructions.size(), -1);
  }

  Outcome<void> assign() {
    for (std::size_t p = 0; p < programs_.size(); ++p)
      for (std::size_t i = 0; i < programs_[p].instructions.size(); ++i) assign_event(p, i);
    for (const auto& [key, message] : messages_)
      if (message.sends.size() != message.receives.size())
        return failure("device {} sends {} messages to device {}, which receives {}", std::get<0>(key),
                       message.sends.size(), std::get<1>(key), message.receives.size());
    for (const auto& [key, events] : collectives_)
      for (std::size_t k = 0; k < events.size(); ++k) {
        const std::size_t expected = key.second.empty() ? programs_.size() : key.second.size();
        if (events[k].members != expected)
          return failure("collective {} of a group of {} devices is reached by only {} of them", k, expected,
                         events[k].members);
      }
    return check_matches();
  }

  int event_of(std::size_t program, std::size_t instruction) const { return event_of_[program][instruction]; }
  int num_events() const { return num_events_; }

 private:
  // Fails unless matching instructions agree on operation, block, micro-batch, direction and size.
  Outcome<void> check_matches() const {
    struct First {
      const Program* program = nullptr;
      const Instruction* instruction = nullptr;
    };
    std::vector<First> firsts(static_cast<std::size_t>(num_events_));
    for (std::size_t p = 0; p < programs_.size(); ++p)
      for (std::size_t i = 0; i < programs_[p].instructions.size(); ++i) {
        const Instruction& at = programs_[p].instructions[i];
        First& first = firsts[static_cast<std::size_t>(event_of_[p][i])];
        if (first.instruction == nullptr) {
          first = {&programs_[p], &at};
          continue;
        }
        const Instruction& other = *first.instruction;
        const bool is_message = is_send(at.op) || is_receive(at.op);
        const bool agree =
            at.microbatch == other.microbatch && at.is_backward == other.is_backward &&
            at.bytes == other.bytes &&
            (is_message ? is_send(at.op) != is_send(other.op) : at.op == other.op && at.block == other.block);
        if (!agree)
          return failure(
              "devices {} and {} have mismatched operations: {} of block {}, {} bytes, and {} of block {}, "
              "{} bytes",
              first.program->device, programs_[p].device, text(other.op), other.block, other.bytes,
              text(at.op), at.block, at.bytes);
      }
    return {};
  }

  struct Message {
    std::vector<int> sends, receives;  // event ids, in order
  };
  struct Collective {
    int event = -1;
    std::size_t members = 0;
  };

  void assign_event(std::size_t p, std::size_t i) {
    const Program& program = programs_[p];
    const Instruction& instruction = program.instructions[i];
    int& event = event_of_[p][i];
    if (is_send(instruction.op) || is_receive(instruction.op)) {
      const bool sends = is_send(instruction.op);
      const int from = sends ? program.device : instruction.peer,
                to = sends ? instruction.peer : program.device;
      Message& message = messages_[{from, to, message_kind(instruction)}];
      std::vector<int>&own_events = sends ? message.sends : message.receives,
      &peer_events = sends ? message.receives : message.sends;
      event = own_events.size() < peer_events.size() ? peer_events[own_events.size()] : num_events_++;
      own_events.push_back(event);
    } else if (instruction.group >= 0) {
      const Group& group = program.groups[static_cast<std::size_t>(instruction.group)];
      std::vector<Collective>& group_events = collectives_[{group.role, group.members}];
      const std::size_t k = num_passed_[{p, instruction.group}]++;
      if (group_events.size() == k) group_events.push_back({num_events_++, 0});
      event = group_events[k].event;
      ++group_events[k].members;
    } else {
      event = num_events_++;
    }
  }

  const std::vector<Program>& programs_;
  std::vector<std::vector<int>> event_of_;
  int num_events_ = 0;
  std::map<std::tuple<int, int, int>, Message> messages_;
  std::map<std::pair<Role, std::vector<int>>, std::vector<Collective>> collectives_;
  // (program, group) -> number of its collectives so far
  std::map<std::pair<std::size_t, int>, std::size_t> num_passed_;
};

struct EventGraph {
  std::vector<double> duration, start;
  std::vector<int> num_pending;
  std::vector<std::vector<int>> successors;
};

// Instructions with the same key run in order. The key is the lane and, on the transfer lane, also the peer,
// direction and kind of the message.
using LaneKey = std::tuple<Lane, int, bool, int>;
LaneKey lane_key(const Instruction& i) {
  if (i.lane != Lane::transfer) return {i.lane, -1, false, 0};
  return {i.lane, i.peer, is_send(i.op), message_kind(i)};
}

EventGraph build_graph(const std::vector<Program>& programs, const EventMatcher& matcher,
                       const DurationOf& duration) {
  const auto n = static_cast<std::size_t>(matcher.num_events());
  EventGraph graph{std::vector<double>(n), std::vector<double>(n), std::vector<int>(n),
                   std::vector<std::vector<int>>(n)};
  for (std::size_t p = 0; p < programs.size(); ++p) {
    std::map<LaneKey, int> last_on_lane;
    for (std::size_t i = 0; i < programs[p].instructions.size(); ++i) {
      const Instruction& instruction = programs[p].instructions[i];
      const int event = matcher.event_of(p, i);
      const auto add_dependency = [&](int earlier) {
        graph.successors[static_cast<std::size_t>(earlier)].push_back(event);
        ++graph.num_pending[static_cast<std::size_t>(event)];
      };
      for (const int wait : programs[p].waits(instruction))
        add_dependency(matcher.event_of(p, static_cast<std::size_t>(wait)));
      const auto [at, is_first] = last_on_lane.try_emplace(lane_key(instruction), event);
      if (!is_first) add_dependency(std::exchange(at->second, event));
      double& longest = graph.duration[static_cast<std::size_t>(event)];
      longest = std::max(longest, duration(programs[p], instruction));
    }
  }
  return graph;
}

// Computes the start of every event whose dependencies complete. Returns the number of these events, which is
// less than the total if there is a cycle.
std::size_t run(EventGraph& graph) {
  std::vector<int> ready;
  for (std::size_t e = 0; e < graph.num_pending.size(); ++e)
    if (graph.num_pending[e] == 0) ready.push_back(static_cast<int>(e));
  std::size_t num_done = 0;
  while (!ready.empty()) {
    const auto event = static_cast<std::size_t>(ready.back());
    ready.pop_back();
    ++num_done;
    const double end = graph.start[event] + graph.duration[event];
    for (const int next : graph.successors[event]) {
      double& start = graph.start[static_cast<std::size_t>(next)];
      start = std::max(start, end);
      if (--graph.num_pending[static_cast<std::size_t>(next)] == 0) ready.push_back(next);
    }
  }
  return num_done;
}

std::string first_blocked_text(const std::vector<Program>& programs, const EventMatcher& matcher,
                               const EventGraph& graph) {
  for (std::size_t p = 0; p < programs.size(); ++p)
    for (std::size_t i = 0; i < programs[p].instructions.size(); ++i)
      if (graph.num_pending[static_cast<std::size_t>(matcher.event_of(p, i))] > 0) {
        const Instruction& at = programs[p].instructions[i];
        return fmt::format("device {}, instruction {}: {} of block {}, micro-batch {}", programs[p].device, i,
                           text(at.op), at.block, at.microbatch);
      }
  return "nothing";
}

}  // namespace

Outcome<Timeline> execute(const std::vector<Program>& programs, const DurationOf& duration) {
  EventMatcher matcher(programs);
  if (Outcome<void> matched = matcher.assign(); !matched) return tl::unexpected(matched.error());
  EventGraph graph = build_graph(programs, matcher, duration);
  if (run(graph) < graph.num_pending.size())
    return failure("deadlock: the programs wait in a cycle; first blocked instruction: {}",
                   first_blocked_text(programs, matcher, graph));
  Timeline timeline;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    timeline.times.emplace_back();
    for (std::size_t i = 0; i < programs[p].instructions.size(); ++i) {
      const auto event = static_cast<std::size_t>(matcher.event_of(p, i));
      const double start = graph.start[event], end = start + graph.duration[event];
      timeline.times.back().push_back({start, end});
      timeline.length = std::max(timeline.length, end);
    }
  }
  return timeline;
}

}  // namespace optimus
