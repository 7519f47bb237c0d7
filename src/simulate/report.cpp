// See report.h.
#include "simulate/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "base/trace_events.h"
#include "plan/describe.h"

namespace optimus {
namespace {

std::string slot_name(const Slot& slot) {
  const char* letter = slot.work == Work::forward           ? "F"
                       : slot.work == Work::backward_weight ? "W"
                       : slot.work == Work::update          ? "U"
                                                            : "B";
  return slot.chunk > 0 ? fmt::format("{}{}.{}", letter, slot.microbatch, slot.chunk)
                        : fmt::format("{}{}", letter, slot.microbatch);
}

OrderedJson time_split_json(const TimeSplit& split) {
  OrderedJson json;
  for (const auto& [name, seconds] : named_parts(split)) json[name] = seconds;
  return json;
}

OrderedJson memory_json(const StageMemory& m) {
  return {{"weights", m.weights.value},     {"gradients", m.gradients.value},
          {"optimizer", m.optimizer.value}, {"activations", m.activations.value},
          {"buffers", m.buffers.value},     {"total", m.total.value}};
}

const Stage& stage_of(const Setup& setup, const StagePrediction& stage) {
  return setup.plan.pipelines[static_cast<std::size_t>(stage.pipeline)]
      .stages[static_cast<std::size_t>(stage.stage)];
}

Bytes memory_of_device(const Setup& setup, const StagePrediction& stage) {
  return setup.cluster.type_of(setup.map[VirtualDevice{stage_of(setup, stage).devices.front()}]).memory;
}

}  // namespace

std::vector<std::pair<std::string, double>> named_parts(const TimeSplit& s) {
  return {{"compute", s.compute}, {"tp", s.tensor},           {"pp", s.pipeline}, {"dp", s.data},
          {"bubble", s.bubble},   {"optimizer", s.optimizer}, {"host", s.host}};
}

OrderedJson prediction_json(const StepPrediction& step, const Setup& setup) {
  OrderedJson json = {{"step_seconds", step.seconds},
                      {"tokens_per_second", step.tokens_per_second},
                      {"mfu", step.mfu},
                      {"memory_bytes", step.memory.value},
                      {"time", time_split_json(step.split)},
                      {"plan", short_text(setup.plan)},
                      {"cluster", setup.cluster.name()},
                      {"software", std::string(setup.software.name)}};
  bool fits = true;
  json["stages"] = OrderedJson::array();
  for (const StagePrediction& stage : step.stages) {
    const Bytes capacity = memory_of_device(setup, stage);
    fits = fits && stage.memory.total <= capacity;
    json["stages"].push_back({{"pipeline", stage.pipeline},
                              {"stage", stage.stage},
                              {"devices", stage_of(setup, stage).devices.size()},
                              {"time", time_split_json(stage.split)},
                              {"memory_bytes", memory_json(stage.memory)},
                              {"device_memory_bytes", capacity.value}});
  }
  json["fits"] = fits;
  return json;
}

std::string prediction_text(const StepPrediction& step, const Setup& setup) {
  std::string result = fmt::format("{} on {}: a step takes {}, {} tokens/s, MFU {}\n", short_text(setup.plan),
                                   setup.cluster.name(), text(Seconds(step.seconds)),
                                   short_count(step.tokens_per_second), percent(step.mfu));
  const TimeSplit& s = step.split;
  result += "time: ";
  const std::pair<const char*, double> parts[] = {{"compute", s.compute},   {"tensor parallel", s.tensor},
                                                  {"pipeline", s.pipeline}, {"data parallel", s.data},
                                                  {"bubble", s.bubble},     {"optimizer", s.optimizer},
                                                  {"host", s.host}};
  for (const auto& [name, seconds] : parts)
    result +=
        fmt::format("{}{} {}", name == parts[0].first ? "" : ", ", name, percent(seconds / step.seconds));
  result += "\n\n";
  TextTable table({"stage", "devices", "weights", "gradients", "optimizer", "activations", "buffers", "total",
                   "device capacity"});
  constexpr std::size_t kMaxShown = 16;
  for (std::size_t i = 0; i < std::min(kMaxShown, step.stages.size()); ++i) {
    const StagePrediction& stage = step.stages[i];
    const StageMemory& m = stage.memory;
    const Bytes capacity = memory_of_device(setup, stage);
    table.row({fmt::format("{}.{}", stage.pipeline, stage.stage),
               std::to_string(stage_of(setup, stage).devices.size()), text(m.weights), text(m.gradients),
               text(m.optimizer), text(m.activations), text(m.buffers), text(m.total),
               text(capacity) + (m.total > capacity ? ": exceeds capacity" : "")});
  }
  result += table.text();
  if (step.stages.size() > kMaxShown)
    result += fmt::format("… and {} more stages\n", step.stages.size() - kMaxShown);
  return result;
}

std::string draw_step(const StepPrediction& step, int columns) {
  std::string result;
  const double scale = static_cast<double>(std::max(10, columns)) / step.seconds;
  for (std::size_t p = 0; p < step.pipelines.size(); ++p)
    for (std::size_t s = 0; s < step.pipelines[p].slots.size(); ++s) {
      std::string row(static_cast<std::size_t>(std::max(10, columns)), '.');
      const std::vector<SlotSpan>& slots = step.pipelines[p].slots[s];
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const Slot& slot = step.orders[p][s][i];
        const char letter =
            static_cast<char>((slot.work == Work::forward ? '0' : 'a') + slot.microbatch % 10);
        const auto end = std::min(row.size(), static_cast<std::size_t>(std::ceil(slots[i].end * scale)));
        for (auto at = static_cast<std::size_t>(slots[i].start * scale); at < end; ++at) row[at] = letter;
      }
      result += fmt::format("{:>3}.{:<3} {}\n", p, s, row);
    }
  return result;
}

std::string perfetto_text(const StepPrediction& step, const std::vector<TracedInstruction>& instructions) {
  // The slots of stage s are on track s * kTracks; its lanes are on the tracks that follow.
  constexpr std::size_t kTracks = 10;
  TraceEvents trace;
  for (std::size_t p = 0; p < step.pipelines.size(); ++p) {
    trace.name_process(p, fmt::format("pipeline {}", p));
    for (std::size_t s = 0; s < step.pipelines[p].slots.size(); ++s) {
      trace.name_track(p, s * kTracks, fmt::format("stage {}", s));
      const std::vector<SlotSpan>& slots = step.pipelines[p].slots[s];
      for (std::size_t i = 0; i < slots.size(); ++i)
        trace.span(slot_name(step.orders[p][s][i]), p, s * kTracks, slots[i].start, slots[i].end);
      trace.span("reduce, update", p, s * kTracks, step.pipelines[p].stage_ends[s], step.seconds);
    }
  }
  std::set<std::pair<std::size_t, std::size_t>> named_tracks;
  for (const TracedInstruction& instruction : instructions) {
    const auto p = static_cast<std::size_t>(instruction.pipeline),
               stage = static_cast<std::size_t>(instruction.stage);
    const std::size_t track = stage * kTracks + 1 + static_cast<std::size_t>(instruction.lane);
    if (named_tracks.insert({p, track}).second)
      trace.name_track(p, track, fmt::format("stage {} {}", stage, text(instruction.lane)));
    trace.span(instruction.name, p, track, instruction.start, instruction.end);
  }
  return trace.text();
}

}  // namespace optimus
