// Any bytes as the rendezvous file of the ranks of one machine: a port with a token, or nothing; never an
// exception.
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "launch/rendezvous_file.h"
#include "scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  static const ScratchFolder scratch;
  const Path path = scratch.path() / "meeting.json";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto place = read_rendezvous_file(path);
  if (place && (place->port < 1 || place->port > 65535)) std::abort();
  return 0;
}
