// Only in builds with the thread sanitizer: tensors' memory comes from the C library, whose allocations the
// sanitizer sees. Of libtorch's own allocator it knows nothing, and memory that one thread has freed and
// another has got would look like a race. See comm/race_detector.h for what is read and written there.
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <new>

namespace optimus::test {
namespace {

class SeenAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    constexpr std::size_t kAlignment = 64;
    void* const data =
        bytes == 0 ? nullptr
                   : std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (bytes > 0 && data == nullptr) throw std::bad_alloc();
    return {data, data, &std::free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Before any tensor is made, and as long as there are any.
[[maybe_unused]] const bool is_installed = [] {
  static SeenAllocator allocator;
  c10::SetCPUAllocator(&allocator);
  return true;
}();

}  // namespace
}  // namespace optimus::test
