// Published traces and results in a folder beside this repository, or in tests/data where the licence permits
// copies.
#pragma once

#include <cstdlib>
#include <string>

#include "base/file.h"
#include "trials/published.h"

namespace optimus {

inline Path data_folder() { return Path(OPTIMUS_SOURCE) / "tests" / "data"; }

// The folder of other traces, which are not copied into the repository.
inline Path shared_traces() {
  const char* named = std::getenv("OPTIMUS_SHARED");
  return (named != nullptr ? Path(named) : Path(OPTIMUS_SOURCE) / ".." / "shared") / "traces";
}

inline std::string content_of(const Path& path) { return value_or_throw(read_file(path, Bytes(1 << 26))); }

inline AvailabilityTrace read_trace(const Path& path) { return parse_trace(content_of(path), path.string()); }

inline PublishedTables published_tables() {
  const Path folder = data_folder() / "oobleck";
  return PublishedTables::parse(content_of(folder / "throughput.csv"), content_of(folder / "costs.csv"),
                                "throughput.csv", "costs.csv");
}

}  // namespace optimus
