// Reads the sensors of a GPU: the reduction of its clock (heat, power) and its utilization. Uses NVIDIA's
// management library (NVML), which is loaded at run time. Without the library, nothing is measured.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace optimus {

class DeviceSensor {
 public:
  struct Reading {
    double clock = 1;  // highest clock of the multiprocessors divided by the present clock
    double idle = 0;   // recent fraction of idle time
  };
  // Opens the device with this PCI address ("0000:3b:00.0"); null if the library is not available or does not
  // know the device.
  static std::unique_ptr<DeviceSensor> open(const std::string& bus_id,
                                            const std::string& library = "libnvidia-ml.so.1");
  ~DeviceSensor();
  DeviceSensor(const DeviceSensor&) = delete;
  DeviceSensor& operator=(const DeviceSensor&) = delete;

  // nullopt if the device reports nothing, or an impossible value.
  std::optional<Reading> read() const;

 private:
  struct Library;
  DeviceSensor(std::unique_ptr<Library> library, void* device, unsigned highest_clock);

  const std::unique_ptr<Library> library_;
  void* const device_;
  const unsigned highest_clock_;  // megahertz
};

}  // namespace optimus
