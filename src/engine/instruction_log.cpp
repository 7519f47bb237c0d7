// See instruction_log.h.
#include "engine/instruction_log.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace optimus {

InstructionLog::InstructionLog(at::Device device, TimingSelection selection)
    : device_(device), selection_(std::move(selection)) {
  begin_times();
}

InstructionLog::Mark InstructionLog::now() {
  if (device_.is_cpu()) return {Clock::now(), nullptr};
  if (free_events_.empty())
    free_events_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
  std::unique_ptr<c10::Event> event = std::move(free_events_.back());
  free_events_.pop_back();
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return {Clock::now(), std::move(event)};
}

void InstructionLog::recycle(Mark& mark) {
  if (mark.event != nullptr) free_events_.push_back(std::move(mark.event));
}

void InstructionLog::begin_times() {
  recycle(origin_);
  origin_ = now();
  if (origin_.event == nullptr) return;
  // The time of the event is known only once the device has finished all earlier work.
  origin_.event->synchronize();
  recycle(origin_);
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
  const bool is_timed_transfer = is_transfer(instruction);
  if (!is_timed_transfer && first_of(instruction) != static_cast<int>(instruction)) return;
  if (instruction >= entries_.size()) entries_.resize(instruction + 1);
  entries_[instruction].begin = is_timed_transfer ? Mark{Clock::now(), nullptr} : now();
}

void InstructionLog::mark_executed(std::size_t instruction, Pending* pending) {
  const bool is_timed_transfer = is_transfer(instruction);
  const int first = first_of(instruction);
  if (!is_timed_transfer && (first < 0 || !is_last(instruction))) return;
  if (pending != nullptr)
    pending->is_done();  // starts polling, so that the end of the operation is noticed at once
  else if (!is_timed_transfer)
    entries_[static_cast<std::size_t>(first)].end = now();
}

void InstructionLog::end(std::size_t instruction, std::unique_ptr<Pending> ended) {
  if (is_transfer(instruction)) {
    Entry& entry = entries_[instruction];
    entry.duration = ended->duration();
    if (!entry.duration) entry.transfer = std::move(ended);  // the device has not finished it yet
    return;
  }
  if (first_of(instruction) != static_cast<int>(instruction)) return;
  Entry& entry = entries_[instruction];
  entry.end = now();
  const std::optional<Clock::time_point> completion_time = ended->end_time();
  if (device_.is_cpu() && completion_time && entry.begin)
    entry.end->time = std::clamp(*completion_time, entry.begin->time, entry.end->time);
}

void InstructionLog::add_span(std::size_t first, std::vector<InstructionTime>& times) const {
  const double end = seconds(*entries_[first].end);
  times.push_back({static_cast<int>(first), seconds(*entries_[first].begin), end});
  const std::vector<int>& spans = selection_.spans;
  for (std::size_t other = first + 1; other < spans.size() && spans[other] == static_cast<int>(first);
       ++other)
    times.push_back({static_cast<int>(other), end, end});
}

std::vector<InstructionTime> InstructionLog::take() {
  std::vector<InstructionTime> result;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.transfer != nullptr) entry.duration = entry.transfer->duration();
    if (entry.begin && entry.end) {
      add_span(i, result);
    } else if (entry.begin && entry.duration) {
      const double begin = seconds(*entry.begin);
      result.push_back({static_cast<int>(i), begin, begin + entry.duration->value});
    }
    for (std::optional<Mark>* mark : {&entry.begin, &entry.end})
      if (*mark) recycle(**mark);
  }
  entries_.clear();
  return result;
}

}  // namespace optimus
