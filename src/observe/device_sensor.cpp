// Implements device_sensor.h. The NVML functions are declared here according to the manual, so the NVML
// header is not needed to build.
#include "observe/device_sensor.h"

#include <dlfcn.h>

#include <algorithm>

namespace optimus {
namespace {

constexpr int kSuccess = 0;
constexpr int kMultiprocessors = 1;  // NVML_CLOCK_SM

}  // namespace

struct DeviceSensor::Library {
  explicit Library(const std::string& name) : handle(dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    find(init, "nvmlInit_v2"), find(shutdown, "nvmlShutdown");
    find(device_by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(clock, "nvmlDeviceGetClockInfo"), find(highest_clock, "nvmlDeviceGetMaxClockInfo");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    is_ready = handle != nullptr && !is_incomplete && init() == kSuccess;
  }
  ~Library() {
    if (is_ready) shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  void find(Function*& function, const char* name) {
    function = handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
    is_incomplete |= function == nullptr;
  }

  struct Utilization {
    unsigned gpu = 0, memory = 0;  // percent
  };

  void* const handle;
  bool is_incomplete = false, is_ready = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_bus)(const char* bus_id, void** device) = nullptr;
  int (*clock)(void* device, int kind, unsigned* megahertz) = nullptr;
  int (*highest_clock)(void* device, int kind, unsigned* megahertz) = nullptr;
  int (*utilization)(void* device, Utilization* percent) = nullptr;
};

DeviceSensor::DeviceSensor(std::unique_ptr<Library> library, void* device, unsigned highest_clock)
    : library_(std::move(library)), device_(device), highest_clock_(highest_clock) {}
DeviceSensor::~DeviceSensor() = default;

std::unique_ptr<DeviceSensor> DeviceSensor::open(const std::string& bus_id, const std::string& library) {
  auto nvml = std::make_unique<Library>(library);
  void* device = nullptr;
  // Called only once, because it takes 1.5 ms on an H200. The other calls take microseconds.
  unsigned max_clock = 0;
  if (!nvml->is_ready || nvml->device_by_bus(bus_id.c_str(), &device) != kSuccess ||
      nvml->highest_clock(device, kMultiprocessors, &max_clock) != kSuccess || max_clock == 0)
    return nullptr;
  return std::unique_ptr<DeviceSensor>(new DeviceSensor(std::move(nvml), device, max_clock));
}

std::optional<DeviceSensor::Reading> DeviceSensor::read() const {
  unsigned present_clock = 0;
  Library::Utilization utilization;
  if (library_->clock(device_, kMultiprocessors, &present_clock) != kSuccess ||
      library_->utilization(device_, &utilization) != kSuccess || present_clock == 0 || utilization.gpu > 100)
    return std::nullopt;
  return Reading{std::max(1.0, static_cast<double>(highest_clock_) / present_clock),
                 1 - utilization.gpu / 100.0};
}

}  // namespace optimus
