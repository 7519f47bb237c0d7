// See order.h.
#include "schedule/order.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace optimus {

Order gpipe(const StagePosition& at) {
  Order order;
  for (int m = 0; m < at.num_microbatches; ++m) order.push_back({Work::forward, m, 0});
  for (int m = at.num_microbatches - 1; m >= 0; --m) order.push_back({Work::backward, m, 0});
  return order;
}

Order one_f_one_b(const StagePosition& at) {
  Order order;
  const int ahead = std::min(at.num_stages - at.stage - 1, at.num_microbatches);
  int forward = 0;
  while (forward < ahead) order.push_back({Work::forward, forward++, 0});
  for (int backward = 0; backward < at.num_microbatches; ++backward) {
    if (forward < at.num_microbatches) order.push_back({Work::forward, forward++, 0});
    order.push_back({Work::backward, backward, 0});
  }
  return order;
}

namespace {

// The k-th forward of a stage: rounds of num_stages micro-batches, each round through all chunks. Backwards
// traverse the chunks in reverse order.
Slot interleaved_slot(int k, Work work, const StagePosition& at) {
  const int round_length = at.num_stages * at.num_chunks;
  const int chunk = k % round_length / at.num_stages;
  return {work, k / round_length * at.num_stages + k % at.num_stages,
          work == Work::forward ? chunk : at.num_chunks - 1 - chunk};
}

}  // namespace

Order interleaved(const StagePosition& at) {
  // Planned for whole rounds; micro-batches that do not exist are then omitted. The remaining slots keep
  // their order, so they cannot deadlock if the whole order does not.
  ensure(static_cast<std::int64_t>(at.num_microbatches + at.num_stages) * at.num_chunks < (1 << 30),
         "{} micro-batches of {} chunks are too many", at.num_microbatches, at.num_chunks);
  const int rounds = (at.num_microbatches + at.num_stages - 1) / at.num_stages;
  const int total = rounds * at.num_stages * at.num_chunks;
  const int ahead = std::min(total, (at.num_stages - at.stage - 1) * 2 + (at.num_chunks - 1) * at.num_stages);
  Order order;
  const auto add = [&](int k, Work work) {
    const Slot slot = interleaved_slot(k, work, at);
    if (slot.microbatch < at.num_microbatches) order.push_back(slot);
  };
  int forward = 0;
  while (forward < ahead) add(forward++, Work::forward);
  for (int backward = 0; backward < total; ++backward) {
    if (forward < total) add(forward++, Work::forward);
    add(backward, Work::backward);
  }
  return order;
}

Order zero_bubble(const StagePosition& at) {
  // Stage s delays its weight gradients by s micro-batches: the input gradients reach the preceding stages
  // early, and the weight gradients fill the time in which the pipeline drains.
  Order order;
  const int m = at.num_microbatches, ahead = std::min(at.num_stages - at.stage - 1, m), lag = at.stage;
  int forward = 0, weight = 0;
  while (forward < ahead) order.push_back({Work::forward, forward++, 0});
  for (int backward = 0; backward < m; ++backward) {
    if (forward < m) order.push_back({Work::forward, forward++, 0});
    order.push_back({Work::backward_input, backward, 0});
    if (backward >= lag) order.push_back({Work::backward_weight, weight++, 0});
  }
  while (weight < m) order.push_back({Work::backward_weight, weight++, 0});
  return order;
}

Order asynchronous(const StagePosition& at) {
  Order order;
  for (const Slot& slot : one_f_one_b(at)) {
    order.push_back(slot);
    if (slot.work == Work::backward) order.push_back({Work::update, slot.microbatch, slot.chunk});
  }
  return order;
}

Order order_of(Schedule schedule, const StagePosition& at) {
  switch (schedule) {
    case Schedule::gpipe:
      return gpipe(at);
    case Schedule::one_f_one_b:
      return one_f_one_b(at);
    case Schedule::interleaved:
      return interleaved(at);
    case Schedule::zero_bubble:
      return zero_bubble(at);
    case Schedule::pipedream:
    case Schedule::pipemare:
      return asynchronous(at);
  }
  return {};
}

int max_saved_microbatches(Schedule schedule, const StagePosition& at) {
  const int m = at.num_microbatches, p = at.num_stages;
  switch (schedule) {
    case Schedule::gpipe:
      return m;
    case Schedule::one_f_one_b:
    case Schedule::pipedream:
    case Schedule::pipemare:
      return std::min(p - at.stage, m);
    case Schedule::interleaved: {
      // Whole rounds: the forwards in advance plus the current one. For an incomplete last round, count in
      // the order itself.
      if (m % p == 0)
        return std::min(m * at.num_chunks, (p - at.stage - 1) * 2 + (at.num_chunks - 1) * p + 1);
      int saved = 0, most = 0;
      for (const Slot& slot : interleaved(at))
        most = std::max(most, saved += slot.work == Work::forward ? 1 : -1);
      return most;
    }
    case Schedule::zero_bubble:
      return std::min(p, m);  // p - stage forwards in advance, and `stage` delayed weight gradients
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
