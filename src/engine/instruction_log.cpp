// See instruction_log.h.
#include "engine/instruction_log.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace optimus {

InstructionLog::InstructionLog(at::Device device, std::vector<int> spans)
    : device_(device), spans_(std::move(spans)) {
  begin_times();
}

InstructionLog::Mark InstructionLog::now() {
  if (device_.is_cpu()) return {Clock::now(), nullptr};
  if (unused_.empty())
    unused_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
  std::unique_ptr<c10::Event> event = std::move(unused_.back());
  unused_.pop_back();
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return {Clock::now(), std::move(event)};
}

void InstructionLog::keep(Mark& mark) {
  if (mark.event != nullptr) unused_.push_back(std::move(mark.event));
}

void InstructionLog::begin_times() {
  keep(origin_);
  origin_ = now();
  if (origin_.event == nullptr) return;
  // Only behind all work that the device still had does the event stand at a known time.
  origin_.event->synchronize();
  keep(origin_);
  origin_ = now();
  origin_.event->synchronize();
}

double InstructionLog::elapsed() const {
  return std::chrono::duration<double>(Clock::now() - origin_.time).count();
}

double InstructionLog::seconds(const Mark& mark) const {
  if (mark.event == nullptr) return std::chrono::duration<double>(mark.time - origin_.time).count();
  mark.event->synchronize();
  return origin_.event->elapsedTime(*mark.event) / 1e3;
}

void InstructionLog::begin(std::size_t instruction) {
  if (first_of(instruction) != static_cast<int>(instruction)) return;
  if (instruction >= entries_.size()) entries_.resize(instruction + 1);
  entries_[instruction] = {now(), std::nullopt};
}

void InstructionLog::executed(std::size_t instruction, Pending* under_way) {
  const int first = first_of(instruction);
  if (first < 0 || !is_last(instruction)) return;
  if (under_way == nullptr)
    entries_[static_cast<std::size_t>(first)].end = now();
  else
    under_way
        ->is_done();  // whoever carries it looks after it from here on, so that its end is seen when it comes
}

void InstructionLog::end(std::size_t instruction, const Pending& ended) {
  if (first_of(instruction) != static_cast<int>(instruction)) return;
  Entry& entry = entries_[instruction];
  entry.end = now();
  const std::optional<Clock::time_point> earlier = ended.ended();
  if (device_.is_cpu() && earlier && entry.begin)
    entry.end->time = std::clamp(*earlier, entry.begin->time, entry.end->time);
}

std::vector<InstructionTime> InstructionLog::take() {
  std::vector<InstructionTime> result;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.begin && entry.end) {
      const double end = seconds(*entry.end);
      result.push_back({static_cast<int>(i), seconds(*entry.begin), end});
      for (std::size_t other = i + 1; other < spans_.size() && spans_[other] == static_cast<int>(i); ++other)
        result.push_back({static_cast<int>(other), end, end});
    }
    for (std::optional<Mark>* mark : {&entry.begin, &entry.end})
      if (*mark) keep(**mark);
  }
  entries_.clear();
  return result;
}

}  // namespace optimus
