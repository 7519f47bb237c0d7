// What a GPU says of itself: by how much its clock is lowered (heat, power), and whether it is busy. By NVIDIA's management library (NVML), which
// is looked for when the program runs: where there is none, nothing is known, and nothing else changes. Pure.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace optimus {

class DeviceSensor {
 public:
  struct Reading {
    double clock = 1;  // the highest clock of its multiprocessors over the present one
    double idle = 0;   // part of the time, of late
  };
  // The device at this place on the bus ("0000:3b:00.0"); nothing where the library is not there, or does not know it.
  static std::unique_ptr<DeviceSensor> open(const std::string& bus_id,
                                            const std::string& library = "libnvidia-ml.so.1");
  ~DeviceSensor();
  DeviceSensor(const DeviceSensor&) = delete;
  DeviceSensor& operator=(const DeviceSensor&) = delete;

  // Nothing where the device does not tell, or tells what cannot be.
  std::optional<Reading> read() const;

 private:
  struct Library;
  DeviceSensor(std::unique_ptr<Library> library, void* device, unsigned highest_clock);

  const std::unique_ptr<Library> library_;
  void* const device_;
  const unsigned highest_clock_;  // megahertz
};

}  // namespace optimus
