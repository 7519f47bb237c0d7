// Any text as a settings file: settings or a UserError.
#include <cstdint>
#include <fstream>

#include "base/options.h"
#include "scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  static const ScratchFolder scratch;
  const Path path = scratch.path() / "settings.toml";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  std::string model;
  std::int64_t layers = 0;
  double rate = 0;
  bool dedup = false;
  std::vector<std::string> list;
  OptionTable table;
  table.add("model", model, "M", "");
  table.add("layers", layers, "N", "");
  table.add("rate", rate, "R", "");
  table.add("dedup", dedup, "");
  table.add("list", list, "L", "");
  try {
    read_config_file(table, path);
    (void)table.resolved_toml();
  } catch (const ReportedError&) {
  }
  return 0;
}
