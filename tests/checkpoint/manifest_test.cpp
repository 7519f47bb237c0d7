// The manifest: its file format, its validation, and the tiling check compared with counting every element.
#include "checkpoint/manifest.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "checkpoint/tiling.h"
#include "layout/property.h"
#include "layout/random_layout.h"

namespace optimus {
namespace {

Manifest two_halves() {
  Manifest manifest;
  manifest.step = 7;
  manifest.files = {{"rank-00000.safetensors", Bytes(100), {1}},
                    {"rank-00001.safetensors", Bytes(200), {0xfedcba9876543210}},
                    {"plan.json", Bytes(0), {3}}};
  manifest.tensors = {{"w", {4, 6}}, {"odd \"name\"\n", {3}}};
  for (const StateField field : kStateFields) {
    manifest.pieces.push_back({field, 0, {{0, 4}, {0, 2}}, 0});
    manifest.pieces.push_back({field, 0, {{0, 4}, {2, 6}}, 1});
    manifest.pieces.push_back({field, 1, {{0, 3}}, field == StateField::second ? 1 : 0});
  }
  make_valid(manifest, "m");
  return manifest;
}

std::string error_of(Manifest manifest) {
  return message_of([&] { make_valid(manifest, "m"); });
}

// Parses the text after one replacement.
std::string error_of(const std::string& from, const std::string& to) {
  std::string content = manifest_text(two_halves());
  const auto at = content.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  content.replace(at, from.size(), to);
  return message_of([&] { parse_manifest(content, "m"); });
}

TEST(Manifest, RoundTrips) {
  const Manifest manifest = two_halves();
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m"), manifest);
  EXPECT_EQ(manifest.bytes(), Bytes(300));
  EXPECT_EQ(manifest.pieces_of(StateField::first, 0).size(), 2u);
  EXPECT_TRUE(manifest.has_field(StateField::second));
  EXPECT_EQ(stored_name(StateField::first, "w", {{0, 4}, {2, 6}}), "first/w[0:4, 2:6]");
  // Fields that are stored in the same way share rows.
  EXPECT_NE(manifest_text(manifest).find(R"({"fields": ["master", "first"], "boxes": [)"), std::string::npos);
}

TEST(Manifest, MatchesDocumentedFormat) {
  Manifest manifest;
  manifest.step = 2;
  manifest.files = {{"rank-00000.safetensors", Bytes(64), {0xab}}};
  manifest.tensors = {{"w", {2, 3}}};
  manifest.pieces = {{StateField::master, 0, {{0, 2}, {0, 3}}, 0}};
  EXPECT_EQ(manifest_text(manifest),
            "{\"format\": \"optimus-checkpoint\", \"version\": 1, \"step\": 2,\n"
            "\"files\": [\n {\"name\": \"rank-00000.safetensors\", \"bytes\": 64, \"xxh3\": "
            "\"00000000000000ab\"}],\n"
            "\"tensors\": [\n {\"name\": \"w\", \"shape\": [2, 3]}],\n"
            "\"pieces\": [\n {\"fields\": [\"master\"], \"boxes\": [\n  [0, 0, 0, 2, 0, 3]]}]}\n");
}

TEST(Manifest, RejectsOtherVersionsAndFormats) {
  EXPECT_EQ(error_of("\"version\": 1", "\"version\": 2"),
            "m: checkpoint format version 2 is not supported; this program reads version 1; a newer program "
            "is required");
  EXPECT_EQ(error_of("\"version\": 1", "\"version\": 0"),
            "m: checkpoint format version 0 is not supported; this program reads version 1");
  EXPECT_EQ(error_of("optimus-checkpoint", "other"), "m: expected format optimus-checkpoint, got 'other'");
  EXPECT_NE(error_of("\"step\"", "\"stp\""), "");
  EXPECT_NE(error_of("\"step\": 7", "\"step\": -7"), "");
  EXPECT_NE(error_of("\"bytes\": 100", "\"bytes\": 1e99"), "");
  EXPECT_NE(error_of("0000000000000001", "000000000000001"), "");
  EXPECT_NE(error_of("0000000000000001", "000000000000000g"), "");
  EXPECT_NE(error_of("[\"master\", \"first\"]", "[\"master\", \"master\"]"), "");
  EXPECT_NE(error_of("[\"master\", \"first\"]", "[\"master\", \"third\"]"), "");
  EXPECT_NE(error_of("[4, 6]", "[4, 6, 1, 1, 1]"), "");
  EXPECT_NE(error_of("[4, 6]", "[]"), "");
  EXPECT_EQ(message_of([] { parse_manifest("", "m"); }),
            "m: line 1, column 1: not valid JSON at the end of the text");
}

TEST(Manifest, RejectsInvalidRows) {
  const std::string row = "[0, 1, 0, 4, 2, 6]";
  EXPECT_EQ(error_of(row, "[0, 1, 0, 4, 2, 7]"),
            "m: tensor 'w': box [0:4, 2:7] is empty or not inside shape [4, 6]");
  EXPECT_EQ(error_of(row, "[0, 1, 0, 4, 6, 6]"),
            "m: tensor 'w': box [0:4, 6:6] is empty or not inside shape [4, 6]");
  EXPECT_EQ(error_of(row, "[9, 1, 0, 4, 2, 6]"), "m: a piece refers to tensor 9, but there are 2 tensors");
  EXPECT_EQ(error_of(row, "[0, 9, 0, 4, 2, 6]"),
            "m: tensor 'w': a piece refers to file 9, but there are 3 files");
  EXPECT_EQ(error_of(row, "[0, 2, 0, 4, 2, 6]"),
            "m: tensor 'w': a piece is in file 'plan.json', which is not a .safetensors file");
  EXPECT_EQ(error_of(row, "[0, 1, 0, 4]"), "m: tensor 'w': box [0:4] is empty or not inside shape [4, 6]");
  for (const char* const bad : {"[0, 1, 0, 4, 2]", "[0, 1, 0, -4, 2, 6]", "[0, 1, 0, 4, 2, 1e1]", "[]", "7",
                                "[0, 1, 0, 4, 2, 18446744073709551615]", "[4294967296, 1, 0, 4, 2, 6]"})
    EXPECT_NE(error_of(row, bad), "") << bad;
}

TEST(Manifest, RejectsGapsAndOverlaps) {
  EXPECT_EQ(error_of("[0, 1, 0, 4, 2, 6]", "[0, 1, 0, 4, 3, 6]"),
            "m: master of tensor 'w': element [0, 2] is not in any piece");
  EXPECT_EQ(error_of("[0, 1, 0, 4, 2, 6]", "[0, 1, 0, 4, 1, 6]"),
            "m: master of tensor 'w': element [0, 1]: expected one piece, got 2");
  Manifest manifest = two_halves();
  std::erase_if(manifest.pieces,
                [](const CheckpointPiece& p) { return p.field == StateField::first && p.tensor == 1; });
  EXPECT_EQ(error_of(manifest), "m: first of tensor 'odd \"name\"\\x0a': element [0] is not in any piece");
  manifest = two_halves();
  std::erase_if(manifest.pieces, [](const CheckpointPiece& p) { return p.field != StateField::master; });
  EXPECT_EQ(error_of(manifest), "");  // master weights alone are a valid checkpoint
  std::erase_if(manifest.pieces, [](const CheckpointPiece&) { return true; });
  EXPECT_EQ(error_of(manifest), "m: no piece contains master weights");
}

TEST(Manifest, RejectsInvalidNamesAndSizes) {
  const auto with = [](auto change) {
    Manifest manifest = two_halves();
    change(manifest);
    return error_of(manifest);
  };
  for (const char* const name : {"../x", "", ".", "..", "a/b", "manifest.json", "a\nb"})
    EXPECT_NE(with([&](Manifest& m) { m.files[2].name = name; }), "") << name;
  EXPECT_EQ(with([](Manifest& m) { m.files[2].name = m.files[0].name; }),
            "m: file 'rank-00000.safetensors' is listed twice");
  EXPECT_NE(with([](Manifest& m) { m.files[0].bytes = m.files[1].bytes = Bytes(INT64_MAX); }), "");
  EXPECT_EQ(with([](Manifest& m) { m.tensors[1].name = "w"; }), "m: tensor 'w' is listed twice");
  EXPECT_NE(with([](Manifest& m) { m.tensors[0].shape = {INT64_MAX / 2, 6}; }), "");
  EXPECT_NE(with([](Manifest& m) { m.tensors[0].shape = {4, 0}; }), "");
}

TEST(Manifest, MergesShardLists) {
  const Manifest whole = two_halves();
  std::vector<Manifest> lists(2);
  for (int rank = 0; rank < 2; ++rank) {
    Manifest& list = lists[static_cast<std::size_t>(rank)];
    list.step = 7;
    list.files = {whole.files[static_cast<std::size_t>(rank)]};
    list.tensors = {whole.tensors[1], whole.tensors[0]};
    for (CheckpointPiece piece : whole.pieces)
      if (piece.file == rank) piece.file = 0, piece.tensor = 1 - piece.tensor, list.pieces.push_back(piece);
    EXPECT_EQ(merge(std::vector{parse_shard_list(shard_list_text(list), "l")}, "m").pieces.size(),
              list.pieces.size());
  }
  Manifest merged = merge(lists, "m");
  merged.files.push_back(whole.files[2]);
  make_valid(merged, "m");
  EXPECT_EQ(merged.bytes(), whole.bytes());
  EXPECT_EQ(merged.pieces.size(), whole.pieces.size());
  lists[1].tensors[1].shape = {4, 7};
  EXPECT_EQ(message_of([&] { merge(lists, "m"); }),
            "m: tensor 'w' has shape [4, 6] on one rank, but [4, 7] on another");
  lists[1].step = 8;
  EXPECT_EQ(message_of([&] { merge(lists, "m"); }),
            "m: one rank has stored step 7, but another rank has stored step 8");
}

// Recursively cuts a box in two.
void cut(const Box& box, int depth, std::vector<Box>& out) {
  const int d = draw(0, box.num_dims - 1);
  if (depth == 0 || box[d].size() < 2) return void(out.push_back(box));
  const auto at = draw(static_cast<int>(box[d].begin) + 1, static_cast<int>(box[d].end) - 1);
  Box left = box, right = box;
  left[d].end = right[d].begin = at;
  cut(left, depth - 1, out), cut(right, depth - 1, out);
}

// Reference implementation: finds the first element that is not in exactly one box by counting.
std::optional<TilingMistake> counted(const Shape& shape, const std::vector<Box>& boxes) {
  for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
    TilingMistake element;
    for (std::int64_t rest = i, d = shape.num_dims - 1; d >= 0; --d) {
      element.element[static_cast<std::size_t>(d)] = rest % shape[static_cast<int>(d)];
      rest /= shape[static_cast<int>(d)];
    }
    for (const Box& box : boxes) {
      bool is_inside = true;
      for (int d = 0; d < shape.num_dims; ++d) {
        const auto at = element.element[static_cast<std::size_t>(d)];
        is_inside = is_inside && at >= box[d].begin && at < box[d].end;
      }
      element.num_boxes += is_inside;
    }
    if (element.num_boxes != 1) return element;
  }
  return std::nullopt;
}

TEST(TilingProperty, MatchesElementCounting) {
  EXPECT_TRUE(holds("tiling", 300, [] {
    Shape shape;
    shape.num_dims = draw(1, 4);
    for (int d = 0; d < shape.num_dims; ++d) shape[d] = draw(1, 6);
    std::vector<Box> boxes;
    cut(Box(shape), draw(0, 5), boxes);
    if (one_in(3)) boxes.erase(boxes.begin() + draw(0, static_cast<int>(boxes.size()) - 1));
    if (one_in(3)) {  // an additional random box
      Box box(shape);
      for (int d = 0; d < shape.num_dims; ++d) {
        box[d].begin = draw(0, static_cast<int>(shape[d]) - 1);
        box[d].end = draw(static_cast<int>(box[d].begin) + 1, static_cast<int>(shape[d]));
      }
      boxes.push_back(box);
    }
    std::reverse(boxes.begin(), boxes.end());
    const auto found = find_tiling_mistake(shape, boxes), expected = counted(shape, boxes);
    RC_ASSERT(found.has_value() == expected.has_value());
    if (!found) return;
    RC_ASSERT(found->element == expected->element);
    RC_ASSERT(found->num_boxes == expected->num_boxes);
  }));
}

}  // namespace
}  // namespace optimus
