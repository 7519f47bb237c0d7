// See pipeline.h.
#include "simulate/pipeline.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

constexpr double kNotYet = -1;

// Times at which the results of slots are available to other stages: [stage][chunk * microbatches +
// microbatch]. The time is kNotYet if the slot has not run.
struct ResultTimes {
  std::vector<std::vector<double>> forward, backward;
};

class PipelineRunner {
 public:
  PipelineRunner(const std::vector<PipelineStage>& stages, const std::vector<double>& sizes,
                 StageMessaging messages, bool stores_slots)
      : stages_(stages),
        sizes_(sizes),
        messages_(messages),
        stores_slots_(stores_slots),
        next_slot_(stages.size()),
        free_(stages.size()) {
    num_chunks_ = stages.front().times->forward.size();
    const std::vector<double> empty(num_chunks_ * sizes.size(), kNotYet);
    result_times_.forward.assign(stages.size(), empty), result_times_.backward.assign(stages.size(), empty);
    counts_.assign(stages.size(), std::vector<double>(kKinds * num_chunks_));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (stores_slots) result_.slots.emplace_back(stages[s].order->size());
      result_.splits.push_back(stages[s].times->before_first_slot.split);
      free_[s] = stages[s].times->before_first_slot.seconds;
    }
  }

  PipelineTimes run() {
    bool has_progress = true;
    while (has_progress) {
      has_progress = false;
      // Forward results go to later stages and backward results to earlier stages, so one pass in each
      // direction finds most of the slots that are ready.
      for (std::size_t s = 0; s < stages_.size(); ++s) has_progress |= advance(s);
      for (std::size_t s = stages_.size(); s-- > 0;) has_progress |= advance(s);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      ensure(next_slot_[s] == stages_[s].order->size(), "stage {} is blocked at slot {}", s, next_slot_[s]);
    for (std::size_t s = 0; s < stages_.size(); ++s) add_splits(s);
    result_.stage_ends = free_;
    return std::move(result_);
  }

 private:
  bool advance(std::size_t s) {
    bool has_advanced = false;
    while (next_slot_[s] < stages_[s].order->size()) {
      const Slot& slot = (*stages_[s].order)[next_slot_[s]];
      const Arrival input = arrival_of(s, slot);
      if (input.arrival == kNotYet) break;
      schedule_slot(s, slot, input);
      ++next_slot_[s];
      has_advanced = true;
    }
    return has_advanced;
  }

  std::size_t result_index(int chunk, int microbatch) const {
    return static_cast<std::size_t>(chunk) * sizes_.size() + static_cast<std::size_t>(microbatch);
  }

  // The input of a slot from another stage: when it is ready on that stage, how long the message takes, and
  // when it arrives.
  struct Arrival {
    double ready = 0, seconds = 0, arrival = 0;
  };
  Arrival arrival_of(std::size_t s, const Slot& slot) const {
    const std::size_t last = stages_.size() - 1;
    const auto message = [&](const std::vector<double>& from, int chunk, double seconds) -> Arrival {
      const double end = from[result_index(chunk, slot.microbatch)];
      if (end == kNotYet) return {0, 0, kNotYet};
      return {end, seconds, end + seconds};
    };
    if (slot.work == Work::forward) {
      if (s > 0) return message(result_times_.forward[s - 1], slot.chunk, stages_[s - 1].to_next);
      if (slot.chunk == 0) return {};
      return message(result_times_.forward[last], slot.chunk - 1, stages_[last].to_next);
    }
    if (slot.work == Work::backward || slot.work == Work::backward_input) {
      if (s < last) return message(result_times_.backward[s + 1], slot.chunk, stages_[s + 1].to_previous);
      if (slot.chunk + 1 == static_cast<int>(num_chunks_)) return {};
      return message(result_times_.backward[0], slot.chunk + 1, stages_[0].to_previous);
    }
    return {};
  }

  // The list of StageTimes that contains the time of a slot.
  enum Kind { first_forward, forward, backward, last_backward, weight, last_weight, kKinds };
  Kind kind_of(const Slot& slot) const {
    const bool is_last = slot.microbatch + 1 == static_cast<int>(sizes_.size());
    switch (slot.work) {
      case Work::forward:
        return slot.microbatch == 0 ? first_forward : forward;
      case Work::backward:
      case Work::backward_input:
        return is_last ? last_backward : backward;
      case Work::backward_weight:
      case Work::update:
        return is_last ? last_weight : weight;
    }
    return forward;
  }
  static const std::vector<SlotTime>& list_of(const StageTimes& times, Kind kind) {
    const std::vector<SlotTime>* lists[kKinds] = {&times.first_forward, &times.forward, &times.backward,
                                                  &times.last_backward, &times.weight,  &times.last_weight};
    return *lists[kind];
  }

  // Computes the breakdown of a stage's time: the sum of the breakdowns of all kinds of slots, each
  // multiplied by its count.
  void add_splits(std::size_t s) {
    for (int kind = 0; kind < kKinds; ++kind)
      for (std::size_t chunk = 0; chunk < num_chunks_; ++chunk)
        if (const double count = counts_[s][static_cast<std::size_t>(kind) * num_chunks_ + chunk]; count > 0)
          result_.splits[s] += list_of(*stages_[s].times, static_cast<Kind>(kind))[chunk].split * count;
  }

  void schedule_slot(std::size_t s, const Slot& slot, const Arrival& input) {
    const Kind kind = kind_of(slot);
    const auto chunk = static_cast<std::size_t>(slot.chunk);
    const SlotTime& time = list_of(*stages_[s].times, kind)[chunk];
    const double size = sizes_[static_cast<std::size_t>(slot.microbatch)];
    counts_[s][static_cast<std::size_t>(kind) * num_chunks_ + chunk] += size;
    TimeSplit& split = result_.splits[s];
    double start = std::max(free_[s], input.arrival);
    if (messages_ == StageMessaging::sequential && input.seconds > 0) {
      // The message starts when both stages have reached it.
      start = std::max(free_[s], input.ready) + input.seconds;
      split.pipeline += std::min(input.seconds, start - free_[s]);
      split.bubble -= std::min(input.seconds, start - free_[s]);
    }
    split.bubble += start - free_[s];
    const double end = start + time.seconds * size;
    if (stores_slots_) result_.slots[s][next_slot_[s]] = {start, end};
    free_[s] = end;
    double message_seconds = 0;
    if (slot.work == Work::forward) {
      result_times_.forward[s][result_index(slot.chunk, slot.microbatch)] = end;
      message_seconds = stages_[s].to_next;
    } else if (slot.work == Work::backward || slot.work == Work::backward_input) {
      result_times_.backward[s][result_index(slot.chunk, slot.microbatch)] = end;
      message_seconds = stages_[s].to_previous;
    }
    if (messages_ == StageMessaging::beside) return;
    free_[s] += message_seconds;
    split.pipeline += message_seconds;
  }

  const std::vector<PipelineStage>& stages_;
  const std::vector<double>& sizes_;
  const StageMessaging messages_;
  const bool stores_slots_;
  std::size_t num_chunks_ = 1;
  std::vector<std::size_t> next_slot_;
  std::vector<double> free_;
  ResultTimes result_times_;
  // [stage][kind * chunks + chunk]: number of slots, weighted by the size of the micro-batch.
  std::vector<std::vector<double>> counts_;
  PipelineTimes result_;
};

}  // namespace

PipelineTimes run_pipeline(const std::vector<PipelineStage>& stages, const std::vector<double>& sizes,
                           StageMessaging messages, bool stores_slots) {
  return PipelineRunner(stages, sizes, messages, stores_slots).run();
}

}  // namespace optimus
