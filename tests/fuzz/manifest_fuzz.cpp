// Any text as a checkpoint's manifest, or as a rank's list: a valid one that round-trips, or a one-line
// UserError.
#include <cstdint>
#include <cstdlib>

#include "checkpoint/manifest.h"

namespace {

// Every field covers every tensor exactly once: the elements of the pieces add up.
void check_counts(const optimus::Manifest& manifest) {
  using namespace optimus;
  for (const StateField field : kStateFields)
    for (int t = 0; t < std::ssize(manifest.tensors) && manifest.has_field(field); ++t) {
      std::int64_t elements = 0;
      for (const CheckpointPiece& piece : manifest.pieces_of(field, t)) elements += piece.box.num_elements();
      if (elements != manifest.tensors[static_cast<std::size_t>(t)].shape.num_elements()) std::abort();
    }
}

template <typename Action>
void expect_user_errors_only(Action action) {
  try {
    action();
  } catch (const optimus::UserError& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace optimus;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_user_errors_only([&] {
    const Manifest manifest = parse_manifest(text, "fuzz");
    check_counts(manifest);
    if (!(parse_manifest(manifest_text(manifest), "again") == manifest)) std::abort();
  });
  expect_user_errors_only([&] {
    const Manifest list = parse_shard_list(text, "fuzz");
    Manifest merged = merge(std::vector{list, list}, "fuzz");
    make_valid(merged, "fuzz");
  });
  return 0;
}
