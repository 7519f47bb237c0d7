// See order.h.
#include "schedule/order.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

Order gpipe(const StagePosition& position) {
  Order order;
  for (int m = 0; m < position.num_microbatches; ++m) order.push_back({Work::forward, m, 0});
  for (int m = position.num_microbatches - 1; m >= 0; --m) order.push_back({Work::backward, m, 0});
  return order;
}

Order one_f_one_b(const StagePosition& position) {
  Order order;
  const int num_ahead = std::min(position.num_stages - position.stage - 1, position.num_microbatches);
  int forward = 0;
  while (forward < num_ahead) order.push_back({Work::forward, forward++, 0});
  for (int backward = 0; backward < position.num_microbatches; ++backward) {
    if (forward < position.num_microbatches) order.push_back({Work::forward, forward++, 0});
    order.push_back({Work::backward, backward, 0});
  }
  return order;
}

namespace {

// The k-th forward or backward pass of a stage. A round processes num_stages micro-batches through all
// chunks. Backward passes traverse the chunks in reverse order.
Slot interleaved_slot(int k, Work work, const StagePosition& position) {
  const int round_length = position.num_stages * position.num_chunks;
  const int chunk = k % round_length / position.num_stages;
  return {work, k / round_length * position.num_stages + k % position.num_stages,
          work == Work::forward ? chunk : position.num_chunks - 1 - chunk};
}

}  // namespace

Order interleaved(const StagePosition& position) {
  // Creates whole rounds, then omits the micro-batches that do not exist. The other slots keep their order,
  // so they cannot deadlock if the complete order does not.
  ensure(static_cast<std::int64_t>(position.num_microbatches + position.num_stages) * position.num_chunks <
             (1 << 30),
         "{} micro-batches of {} chunks are too many", position.num_microbatches, position.num_chunks);
  const int rounds = (position.num_microbatches + position.num_stages - 1) / position.num_stages;
  const int total = rounds * position.num_stages * position.num_chunks;
  const int num_ahead = std::min(total, (position.num_stages - position.stage - 1) * 2 +
                                            (position.num_chunks - 1) * position.num_stages);
  Order order;
  const auto add = [&](int k, Work work) {
    const Slot slot = interleaved_slot(k, work, position);
    if (slot.microbatch < position.num_microbatches) order.push_back(slot);
  };
  int forward = 0;
  while (forward < num_ahead) add(forward++, Work::forward);
  for (int backward = 0; backward < total; ++backward) {
    if (forward < total) add(forward++, Work::forward);
    add(backward, Work::backward);
  }
  return order;
}

Order zero_bubble(const StagePosition& position) {
  // Stage s delays its weight gradients by s micro-batches, so input gradients reach the preceding stages
  // early and weight gradients fill the time in which the pipeline drains.
  Order order;
  const int m = position.num_microbatches, num_ahead = std::min(position.num_stages - position.stage - 1, m),
            lag = position.stage;
  int forward = 0, weight = 0;
  while (forward < num_ahead) order.push_back({Work::forward, forward++, 0});
  for (int backward = 0; backward < m; ++backward) {
    if (forward < m) order.push_back({Work::forward, forward++, 0});
    order.push_back({Work::backward_input, backward, 0});
    if (backward >= lag) order.push_back({Work::backward_weight, weight++, 0});
  }
  while (weight < m) order.push_back({Work::backward_weight, weight++, 0});
  return order;
}

Order asynchronous(const StagePosition& position) {
  Order order;
  for (const Slot& slot : one_f_one_b(position)) {
    order.push_back(slot);
    if (slot.work == Work::backward) order.push_back({Work::update, slot.microbatch, slot.chunk});
  }
  return order;
}

Order order_of(Schedule schedule, const StagePosition& position) {
  switch (schedule) {
    case Schedule::gpipe:
      return gpipe(position);
    case Schedule::one_f_one_b:
      return one_f_one_b(position);
    case Schedule::interleaved:
      return interleaved(position);
    case Schedule::zero_bubble:
      return zero_bubble(position);
    case Schedule::pipedream:
    case Schedule::pipemare:
      return asynchronous(position);
  }
  return {};
}

int max_saved_microbatches(Schedule schedule, const StagePosition& position) {
  const int m = position.num_microbatches, p = position.num_stages;
  switch (schedule) {
    case Schedule::gpipe:
      return m;
    case Schedule::one_f_one_b:
    case Schedule::pipedream:
    case Schedule::pipemare:
      return std::min(p - position.stage, m);
    case Schedule::interleaved: {
      // If all rounds are complete, this is the number of forward passes before the first backward pass, plus
      // one. Otherwise the passes are counted in the actual order.
      if (m % p == 0)
        return std::min(m * position.num_chunks,
                        (p - position.stage - 1) * 2 + (position.num_chunks - 1) * p + 1);
      int num_saved = 0, max_saved = 0;
      for (const Slot& slot : interleaved(position))
        max_saved = std::max(max_saved, num_saved += slot.work == Work::forward ? 1 : -1);
      return max_saved;
    }
    case Schedule::zero_bubble:
      return std::min(p, m);  // p - stage forward passes in advance, and `stage` delayed weight gradients
  }
  return 0;
}

std::string text(const Order& order) {
  const bool has_chunks =
      std::any_of(order.begin(), order.end(), [](const Slot& slot) { return slot.chunk > 0; });
  std::vector<std::string> slot_texts;
  for (const Slot& slot : order) {
    const char* letter = "";
    switch (slot.work) {
      case Work::forward:
        letter = "F";
        break;
      case Work::backward:
      case Work::backward_input:
        letter = "B";
        break;
      case Work::backward_weight:
        letter = "W";
        break;
      case Work::update:
        letter = "U";
        break;
    }
    slot_texts.push_back(has_chunks ? fmt::format("{}{}.{}", letter, slot.microbatch, slot.chunk)
                                    : fmt::format("{}{}", letter, slot.microbatch));
  }
  return join(slot_texts, " ");
}

}  // namespace optimus
