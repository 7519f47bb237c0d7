// Uses a fake library in place of NVIDIA's (fake_nvml.cpp).
#include "observe/device_sensor.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace optimus {
namespace {

std::optional<DeviceSensor::Reading> read(const char* clock, const char* highest, const char* busy) {
  setenv("FAKE_CLOCK", clock, 1), setenv("FAKE_HIGHEST_CLOCK", highest, 1), setenv("FAKE_BUSY", busy, 1);
  const auto sensor = DeviceSensor::open("0000:3b:00.0", FAKE_NVML);
  return sensor == nullptr ? std::nullopt : sensor->read();
}

TEST(DeviceSensor, ReadsClockAndUtilization) {
  const auto reading = read("990", "1980", "75");
  ASSERT_TRUE(reading.has_value());
  EXPECT_EQ(reading->clock, 2);
  EXPECT_EQ(reading->idle, 0.25);
  EXPECT_EQ(read("2000", "1980", "100")->clock, 1) << "above its reported maximum";
}

TEST(DeviceSensor, IgnoresImpossibleReadings) {
  EXPECT_FALSE(read("0", "1980", "75").has_value());
  EXPECT_FALSE(read("990", "0", "75").has_value()) << "then there is no sensor";
  EXPECT_FALSE(read("990", "1980", "4294967295").has_value());
}

TEST(DeviceSensor, NullWithoutLibraryOrDevice) {
  EXPECT_EQ(DeviceSensor::open("0000:3b:00.0", "no-such-library.so"), nullptr);
  EXPECT_EQ(DeviceSensor::open("0000:af:00.0", FAKE_NVML), nullptr);
  EXPECT_EQ(DeviceSensor::open("0000:3b:00.0", "libdl.so.2"), nullptr) << "a library without these functions";
}

}  // namespace
}  // namespace optimus
