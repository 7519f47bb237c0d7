// Random runs and noise for detect_test.cpp: random plans, synthetic and recorded noise.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/validate.h"
#include "trials/simulated_run.h"

namespace optimus {
namespace {

bool is_long_run() { return std::getenv("OPTIMUS_LONG") != nullptr; }

// Seeded random numbers, so that figures can be reproduced.
struct Dice {
  RandomKey key;
  std::uint64_t drawn = 0;
  int below(int bound) {
    return static_cast<int>(random_below(key, drawn++, static_cast<std::uint64_t>(bound)));
  }
  double between(double low, double high) { return low + (high - low) * random_uniform(key, drawn++); }
};

// The mean of the recorded steps.
constexpr double kRecordedSeconds = 0.0057;

struct Case {
  ModelSpec model;
  HardwareProfile profile;
  Plan plan;
};

// pp x dp x tp on nodes of 1 to 8 devices.
Case random_case(Dice& dice) {
  while (true) {
    Case one{*find_preset("gpt3-1.3b"), {}, {}};
    const int pp = 1 << dice.below(3), tp = 1 << dice.below(3), dp = 1 << dice.below(4);
    const int devices = pp * tp * dp;
    if (devices < 2 || devices > 64) continue;
    const char* types[] = {"h100", "a100", "v100"};
    one.profile = standard_cluster(types[dice.below(3)] + std::string("x") + std::to_string(devices));
    NodeGroup& group = one.profile.groups.front();
    group.devices_per_node = std::min(devices, 1 << dice.below(4));
    group.devices_per_domain = group.devices_per_node;
    UniformPlan shape{.pp = pp, .dp = dp, .microbatch = 1, .batch = 64 * dp, .sequence_length = 1024};
    shape.strategy.tp = tp;
    one.plan = uniform_plan(one.model, shape);
    if (!find_problem(one.plan, one.model)) return one;
  }
}

// Ranges from published measurements and from this project's own runs: docs/results/adaptation.md.
Noise random_noise(Dice& dice) {
  Noise noise;
  noise.spread = dice.between(0.01, 0.04), noise.memory = dice.between(0.4, 0.8);
  return noise;
}

std::vector<double> recorded_noise() {
  std::ifstream file(std::string(OPTIMUS_SOURCE) + "/tests/data/noise/step_seconds.txt");
  std::vector<double> values;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    for (double value = 0; words >> value;) values.push_back(value);
  }
  return values;
}

// For figures on held-out data: OPTIMUS_HELD_OUT=N adds N to the seeds, OPTIMUS_HALF uses only the second
// half of the recording.
int held_out() {
  const char* word = std::getenv("OPTIMUS_HELD_OUT");
  return word == nullptr ? 0 : std::atoi(word);
}

Noise replayed_noise() {
  Noise noise;
  noise.recorded = recorded_noise(), noise.recorded_seconds = kRecordedSeconds;
  EXPECT_EQ(noise.recorded.size(), 5980u);
  if (std::getenv("OPTIMUS_HALF") != nullptr)
    noise.recorded.erase(noise.recorded.begin(), noise.recorded.begin() + 2990);
  return noise;
}

}  // namespace
}  // namespace optimus
