// Computes properties of a finished program: memory use, saved micro-batches, and its text.
#include "schedule/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "schedule/activation_buffer.h"

namespace optimus {
namespace {

// The position in the list at which each instruction is complete. Computations and host work are complete
// right after their own position. Other instructions are complete before the first instruction that waits for
// them or follows on the same lane (see the execution order in program.h).
std::vector<std::int64_t> completion_positions(const Program& program) {
  const auto end = std::ssize(program.instructions);
  std::vector<std::int64_t> result(program.instructions.size(), end);
  std::array<std::int64_t, 6> next_on_lane;
  next_on_lane.fill(end);
  for (std::int64_t i = end - 1; i >= 0; --i) {
    const Instruction& at = program.instructions[static_cast<std::size_t>(i)];
    std::int64_t& completion = result[static_cast<std::size_t>(i)];
    std::int64_t& next = next_on_lane[static_cast<std::size_t>(at.lane)];
    if (at.lane == Lane::compute || at.lane == Lane::host)
      completion = i + 1;
    else if (at.lane != Lane::transfer)
      completion = std::min(completion, next);
    next = i;
    for (const int wait : program.waits(at))
      result[static_cast<std::size_t>(wait)] = std::min(result[static_cast<std::size_t>(wait)], i);
  }
  return result;
}

// Lifetime of each buffer: from the first instruction that uses it until the last such instruction is
// complete; {0, end} for buffers that are live during the whole step.
std::vector<Span> lifetimes(const Program& program) {
  const auto end = std::ssize(program.instructions);
  const std::vector<std::int64_t> ends = completion_positions(program);
  std::vector<Span> result(program.buffers.size(), Span{0, end});
  std::vector<bool> is_used(program.buffers.size());
  for (std::int64_t i = 0; i < end; ++i)
    for (const Use& use : program.uses(program.instructions[static_cast<std::size_t>(i)])) {
      Span& life = result[static_cast<std::size_t>(use.buffer)];
      const std::int64_t completion = std::max(i + 1, ends[static_cast<std::size_t>(i)]);
      life = is_used[static_cast<std::size_t>(use.buffer)] ? Span{life.begin, std::max(life.end, completion)}
                                                           : Span{i, completion};
      is_used[static_cast<std::size_t>(use.buffer)] = true;
    }
  return result;
}

enum class MemoryCategory { weights, gradients, optimizer, activations, buffers };

MemoryCategory category_of(BufferKind kind) {
  switch (kind) {
    case BufferKind::weights:
    case BufferKind::stashed_weights:
      return MemoryCategory::weights;
    case BufferKind::gradients:
      return MemoryCategory::gradients;
    case BufferKind::optimizer_state:
    case BufferKind::copy_state:
      return MemoryCategory::optimizer;
    case BufferKind::saved_activations:
    case BufferKind::graph:
      return MemoryCategory::activations;
    case BufferKind::gathered_weights:
    case BufferKind::transient_activations:
    case BufferKind::saved_gradients:
    case BufferKind::transient_gradients:
    case BufferKind::logits:
    case BufferKind::graph_work:
    case BufferKind::whole_gradients:
    case BufferKind::copy_gradients:
    case BufferKind::exchange:
    case BufferKind::outgoing:
    case BufferKind::message:
    case BufferKind::joined:
      return MemoryCategory::buffers;
  }
  return MemoryCategory::buffers;
}

}  // namespace

MemoryUse memory_use(const Program& program) {
  struct Change {
    std::int64_t index, bytes;
    MemoryCategory cause;
  };
  std::vector<Change> changes;
  const std::vector<Span> lives = lifetimes(program);
  for (std::size_t b = 0; b < lives.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    changes.push_back({lives[b].begin, buffer.bytes.value, category_of(buffer.kind)});
    changes.push_back({lives[b].end, -buffer.bytes.value, category_of(buffer.kind)});
  }
  // At the same position, buffers that end are counted before buffers that start.
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::pair(a.index, a.bytes) < std::pair(b.index, b.bytes);
  });
  std::array<std::int64_t, 5> current{}, peaks{};
  std::int64_t total = 0, peak = 0;
  for (const Change& change : changes) {
    const auto cause = static_cast<std::size_t>(change.cause);
    peaks[cause] = std::max(peaks[cause], current[cause] += change.bytes);
    peak = std::max(peak, total += change.bytes);
  }
  return {Bytes(peaks[0]), Bytes(peaks[1]), Bytes(peaks[2]), Bytes(peaks[3]), Bytes(peaks[4]), Bytes(peak)};
}

namespace {

bool outlives_step(BufferKind kind) {
  return kind == BufferKind::weights || kind == BufferKind::gradients ||
         kind == BufferKind::optimizer_state || kind == BufferKind::copy_state ||
         kind == BufferKind::stashed_weights;
}

bool is_owned_by_autograd(BufferKind kind) {
  return kind == BufferKind::graph || kind == BufferKind::graph_work;
}

// Free ranges of one memory block that grows at its end. Allocation is first-fit, lowest address first.
class FreeList {
 public:
  std::int64_t allocate(std::int64_t bytes) {
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->second - at->first < bytes) continue;
      const std::int64_t offset = at->first, end = at->second;
      free_.erase(at);
      if (offset + bytes < end) free_.emplace(offset + bytes, end);
      return offset;
    }
    // If the last free range is at the end, the block grows only by the missing bytes.
    std::int64_t offset = end_;
    if (!free_.empty() && free_.rbegin()->second == end_) {
      offset = free_.rbegin()->first;
      free_.erase(std::prev(free_.end()));
    }
    end_ = offset + bytes;
    return offset;
  }
  void release(std::int64_t begin, std::int64_t end) {
    const auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == end) end = next->second, free_.erase(next);
    const auto after = free_.lower_bound(begin);
    if (after != free_.begin() && std::prev(after)->second == begin)
      std::prev(after)->second = end;
    else
      free_.emplace(begin, end);
  }
  std::int64_t end() const { return end_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // start -> end
  std::int64_t end_ = 0;
};

}  // namespace

Arena plan_arena(const Program& program) {
  const std::vector<Span> lives = lifetimes(program);
  struct Event {
    std::int64_t index;
    bool is_begin;  // false is sorted first, so memory is released before it is allocated
    int buffer;
    auto operator<=>(const Event&) const = default;
  };
  std::vector<Event> events;
  for (int b = 0; b < std::ssize(lives); ++b) {
    if (outlives_step(program.buffers[static_cast<std::size_t>(b)].kind)) continue;
    events.push_back({lives[static_cast<std::size_t>(b)].begin, true, b});
    events.push_back({lives[static_cast<std::size_t>(b)].end, false, b});
  }
  std::sort(events.begin(), events.end());
  Arena arena{std::vector<std::int64_t>(program.buffers.size(), -1), Bytes(0), Bytes(0)};
  FreeList memory;
  std::int64_t autograd_bytes = 0;
  for (const Event& event : events) {
    const auto b = static_cast<std::size_t>(event.buffer);
    const std::int64_t bytes = aligned(program.buffers[b].bytes.value);
    if (is_owned_by_autograd(program.buffers[b].kind))
      arena.autograd_peak =
          std::max(arena.autograd_peak, Bytes(autograd_bytes += event.is_begin ? bytes : -bytes));
    else if (event.is_begin)
      arena.offsets[b] = memory.allocate(bytes);
    else
      memory.release(arena.offsets[b], arena.offsets[b] + bytes);
  }
  arena.bytes = Bytes(memory.end());
  return arena;
}

int max_saved_microbatches(const Program& program) {
  // (micro-batch, chunk) -> lifetime from its first forward pass to its last backward pass.
  std::map<std::pair<int, int>, Span> lives;
  for (std::int64_t i = 0; i < std::ssize(program.instructions); ++i) {
    const Instruction& instruction = program.instructions[static_cast<std::size_t>(i)];
    if (instruction.lane != Lane::compute || instruction.microbatch < 0 || instruction.op == Op::optimizer)
      continue;
    const auto [at, is_new] = lives.try_emplace({instruction.microbatch, instruction.chunk}, Span{i, i + 1});
    at->second.end = i + 1;
  }
  std::vector<std::pair<std::int64_t, int>> changes;
  for (const auto& [key, life] : lives)
    changes.emplace_back(life.begin, 1), changes.emplace_back(life.end, -1);
  std::sort(changes.begin(), changes.end());
  int num_saved = 0, max_saved = 0;
  for (const auto& [at, change] : changes) max_saved = std::max(max_saved, num_saved += change);
  return max_saved;
}

std::string text(Op op) {
  switch (op) {
    case Op::load_batch:
      return "load_batch";
    case Op::forward:
      return "forward";
    case Op::recompute:
      return "recompute";
    case Op::backward_input:
      return "backward_input";
    case Op::backward_weight:
      return "backward_weight";
    case Op::send:
      return "send";
    case Op::receive:
      return "receive";
    case Op::all_gather:
      return "all_gather";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_reduce:
      return "all_reduce";
    case Op::ring_exchange:
      return "ring_exchange";
    case Op::dispatch:
      return "dispatch";
    case Op::combine:
      return "combine";
    case Op::gather_parameters:
      return "gather_parameters";
    case Op::reduce_gradients:
      return "reduce_gradients";
    case Op::sync_gradients:
      return "sync_gradients";
    case Op::send_copy:
      return "send_copy";
    case Op::receive_copy:
      return "receive_copy";
    case Op::step_gate:
      return "step_gate";
    case Op::optimizer:
      return "optimizer";
  }
  return "";
}

std::string text(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::tensor:
      return "tensor";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::transfer:
      return "transfer";
    case Lane::host:
      return "host";
  }
  return "";
}

std::string text(Part part) {
  switch (part) {
    case Part::whole:
      return "";
    case Part::attention:
      return "attention";
    case Part::mlp:
      return "mlp";
    case Part::attention_input:
      return "attention input";
    case Part::attention_ring_step:
      return "attention ring step";
    case Part::attention_output:
      return "attention output";
    case Part::router:
      return "router";
    case Part::experts:
      return "experts";
  }
  return "";
}

namespace {

std::string group_text(const Group& group) {
  if (group.role == Role::world) return "all devices";
  constexpr std::size_t kMaxShown = 8;
  std::vector<std::string> members;
  for (std::size_t i = 0; i < std::min(kMaxShown, group.members.size()); ++i)
    members.push_back(std::to_string(group.members[i]));
  return fmt::format(
      "{{{}{}}}", join(members, " "),
      group.members.size() > kMaxShown ? fmt::format(" … {} devices", group.members.size()) : "");
}

}  // namespace

std::string text(const Program& program) {
  std::string result =
      fmt::format("device {}: pipeline {}, stage {}, {} instructions\n", program.device,
                  program.location.pipeline, program.location.stage, program.instructions.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    std::string line = fmt::format("{:5} {:<9} {}", i, text(at.lane), text(at.op));
    if (at.is_backward && at.lane != Lane::compute) line += " gradient";
    if (at.block >= 0) line += fmt::format(" block {}", at.block);
    if (at.part != Part::whole)
      line += " " + text(at.part) + (at.ring_step >= 0 ? fmt::format(" {}", at.ring_step) : "");
    if (at.microbatch >= 0) line += fmt::format(" micro-batch {}", at.microbatch);
    if (at.peer >= 0)
      line +=
          fmt::format(" {} device {}", at.op == Op::send || at.op == Op::send_copy ? "to" : "from", at.peer);
    if (at.group >= 0) line += " over " + group_text(program.groups[static_cast<std::size_t>(at.group)]);
    if (at.bytes > 0) line += fmt::format(", {}", text(Bytes(at.bytes)));
    if (const auto waits = program.waits(at); !waits.empty())
      line += fmt::format("  after {}", fmt::join(waits, " "));
    result += line + "\n";
  }
  return result;
}

}  // namespace optimus
