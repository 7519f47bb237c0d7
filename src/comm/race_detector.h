// Reports to ThreadSanitizer which memory an operation reads and writes. This is needed because libtorch's
// kernels are not instrumented, so the sanitizer does not see their accesses. Has no effect in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_THREAD__)
#define OPTIMUS_HAS_RACE_DETECTOR 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OPTIMUS_HAS_RACE_DETECTOR 1
#endif
#endif

#ifdef OPTIMUS_HAS_RACE_DETECTOR
extern "C" void __tsan_read_range(void* address, unsigned long size);
extern "C" void __tsan_write_range(void* address, unsigned long size);
#endif

namespace optimus {

#ifdef OPTIMUS_HAS_RACE_DETECTOR
inline void announce_read(const void* data, std::size_t bytes) {
  if (bytes > 0) __tsan_read_range(const_cast<void*>(data), bytes);
}
inline void announce_write(void* data, std::size_t bytes) {
  if (bytes > 0) __tsan_write_range(data, bytes);
}
#else
inline void announce_read(const void*, std::size_t) {}
inline void announce_write(void*, std::size_t) {}
#endif

}  // namespace optimus
