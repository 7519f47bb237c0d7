// Runs one test of this program in a process of its own, configured by environment variables.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"

namespace optimus::test {

inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline std::string content(const Path& path) {
  std::ostringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

// variables: "NAME=value", placed before those of this process. stdout and stderr both go to the file.
inline pid_t spawn_self(const std::string& test, std::vector<std::string> variables, const Path& output) {
  variables.emplace_back("OMP_NUM_THREADS=1");
  std::vector<char*> environment;
  for (std::string& each : variables) environment.push_back(each.data());
  for (char** each = ::environ; *each != nullptr; ++each) environment.push_back(*each);
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=" + test;
  char* const words[] = {program.data(), filter.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawn(&pid, program.c_str(), &actions, nullptr, words, environment.data()), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  return pid;
}

}  // namespace optimus::test
