// Counts what libtorch allocates on the processor, while it lives.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace optimus {

class TrackingAllocator final : public c10::Allocator {
 public:
  TrackingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~TrackingAllocator() override { c10::SetCPUAllocator(before_, 100); }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* const base = c10::alloc_cpu(bytes + kHeader);
    *static_cast<Header*>(base) = {this, bytes};
    now_ += static_cast<std::int64_t>(bytes);
    peak_ = std::max<std::int64_t>(peak_, now_);
    largest_ = std::max<std::int64_t>(largest_, static_cast<std::int64_t>(bytes));
    return {static_cast<char*>(base) + kHeader, base, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::int64_t now() const { return now_; }
  std::int64_t peak() const { return peak_; }
  // The largest single allocation since the last call.
  std::int64_t take_largest() { return largest_.exchange(0); }

 private:
  static constexpr std::size_t kHeader = 64;
  struct Header {
    TrackingAllocator* owner;
    std::size_t bytes;
  };
  static void release(void* base) {
    if (base == nullptr) return;
    const Header header = *static_cast<Header*>(base);
    header.owner->now_ -= static_cast<std::int64_t>(header.bytes);
    c10::free_cpu(base);
  }

  c10::Allocator* before_;
  std::atomic<std::int64_t> now_ = 0, peak_ = 0, largest_ = 0;
};

}  // namespace optimus
