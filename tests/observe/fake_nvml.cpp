// A fake of NVIDIA's management library with one device, whose readings come from the environment; loaded by
// device_sensor_test.
#include <cstdlib>
#include <cstring>

namespace {
unsigned figure(const char* name) { return static_cast<unsigned>(std::atoi(std::getenv(name))); }
int device = 0, users = 0;
}  // namespace

extern "C" {
int nvmlInit_v2() { return ++users, 0; }
int nvmlShutdown() { return --users, 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** found) {
  *found = &device;
  return std::strcmp(bus_id, "0000:3b:00.0") == 0 && users > 0 ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetClockInfo(void*, int kind, unsigned* clock) {
  *clock = figure("FAKE_CLOCK");
  return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetMaxClockInfo(void*, int kind, unsigned* clock) {
  *clock = figure("FAKE_HIGHEST_CLOCK");
  return kind == 1 ? 0 : 2;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  percent[0] = figure("FAKE_BUSY"), percent[1] = 5;
  return 0;
}
}
