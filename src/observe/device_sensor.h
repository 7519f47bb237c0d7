// Reads how much the clock of a GPU is reduced (because of heat or power) and its utilization. Uses NVIDIA's
// management library (NVML), which is loaded at run time. If the library is not available, nothing is
// measured.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace optimus {

class DeviceSensor {
 public:
  struct Reading {
    double clock = 1;  // maximum clock of the multiprocessors divided by the current clock
    double idle = 0;   // recent fraction of idle time
  };
  // Opens the device with this PCI address ("0000:3b:00.0"). Returns null if the library is not available or
  // does not recognize the device.
  static std::unique_ptr<DeviceSensor> open(const std::string& bus_id,
                                            const std::string& library = "libnvidia-ml.so.1");
  ~DeviceSensor();
  DeviceSensor(const DeviceSensor&) = delete;
  DeviceSensor& operator=(const DeviceSensor&) = delete;

  // Returns nullopt if the device reports no value or an impossible one.
  std::optional<Reading> read() const;

 private:
  struct Library;
  DeviceSensor(std::unique_ptr<Library> library, void* device, unsigned highest_clock);

  const std::unique_ptr<Library> library_;
  void* const device_;
  const unsigned highest_clock_;  // megahertz
};

}  // namespace optimus
