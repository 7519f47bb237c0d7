// A temporary folder for one test, removed with its contents by the destructor.
#pragma once

#include <stdlib.h>

#include <fstream>

#include "base/file.h"

namespace optimus {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "optimus-test-XXXXXX").string();
    ensure(::mkdtemp(name.data()) != nullptr, "cannot make a folder like {}", name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const Path& path() const { return path_; }
  Path operator/(const std::string& name) const { return path_ / name; }
  Path write(const std::string& name, std::string_view content) const {
    const Path path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      result.push_back(entry.path().filename());
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  Path path_;
};

// The text of the ReportedError that `action` throws, or "" if it throws none.
template <typename Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const ReportedError& error) {
    return error.what();
  }
  return "";
}

}  // namespace optimus
