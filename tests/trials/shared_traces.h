// Published traces and figures that lie beside this repository, or in tests/data (those whose licence lets them be copied).
#pragma once

#include <cstdlib>
#include <string>

#include "base/file.h"
#include "trials/published.h"

namespace optimus {

inline Path data_folder() { return Path(OPTIMUS_SOURCE) / "tests" / "data"; }

// Where other traces may lie; they are not copied.
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
