// Counts libtorch's CPU allocations during its lifetime.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>

namespace optimus {

class TrackingAllocator final : public c10::Allocator {
 public:
  TrackingAllocator() : before_(c10::GetCPUAllocator()) {
    live() = this;
    c10::SetCPUAllocator(this, 100);
  }
  ~TrackingAllocator() override {
    c10::SetCPUAllocator(before_, 100);
    live() = nullptr;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t kLine = 64;
    void* const data = std::aligned_alloc(kLine, (bytes + kLine) / kLine * kLine);
    const std::lock_guard lock(mutex_);
    sizes_[data] = static_cast<std::int64_t>(bytes);
    now_ += static_cast<std::int64_t>(bytes);
    peak_ = std::max(peak_, now_), largest_ = std::max(largest_, static_cast<std::int64_t>(bytes));
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::int64_t peak() const { return peak_; }
  // The largest single allocation since the last call.
  std::int64_t take_largest() { return std::exchange(largest_, 0); }

 private:
  // A deleter receives only a pointer.
  static TrackingAllocator*& live() {
    static TrackingAllocator* allocator = nullptr;
    return allocator;
  }
  static void release(void* data) {
    if (TrackingAllocator* self = live(); self != nullptr && data != nullptr) {
      const std::lock_guard lock(self->mutex_);
      if (const auto at = self->sizes_.find(data); at != self->sizes_.end()) {
        self->now_ -= at->second;
        self->sizes_.erase(at);
      }
    }
    std::free(data);
  }

  c10::Allocator* before_;
  std::mutex mutex_;
  std::map<void*, std::int64_t> sizes_;
  std::int64_t now_ = 0, peak_ = 0, largest_ = 0;
};

}  // namespace optimus
