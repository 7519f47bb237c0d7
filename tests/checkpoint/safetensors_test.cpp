// The files are written byte by byte, so that tests of the reader do not depend on the writer.
// tests/parity/safetensors_parity.py compares with the reference implementation of the format.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>

#include "base/failing_file_system.h"
#include "base/temporary_folder.h"

namespace optimus {
namespace {

std::string file_text(const std::string& header, const std::string& data, std::uint64_t length = 0) {
  if (length == 0) length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

SafetensorsContent parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "f.safetensors");
}

std::string header_error(const std::string& header, const std::string& data = "") {
  const std::string file = file_text(header, data);
  return message_of([&] { parse(file); });
}

constexpr const char* kTwo = R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},
  "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"__metadata__":{"format":"pt"}}   )";

TEST(Safetensors, ReadsInDataOrder) {
  const std::string file = file_text(kTwo, std::string("\0\0\x80\x3f", 4) + "wxyz");
  const SafetensorsContent content = parse(file);
  ASSERT_EQ(content.tensors.size(), 2U);
  EXPECT_EQ(content.tensors[0].name, "a");
  EXPECT_EQ(content.tensors[0].type, ElementType::f32);
  EXPECT_TRUE(content.tensors[0].shape.empty());
  EXPECT_EQ(content.tensors[1].shape, std::vector<std::int64_t>{4});
  EXPECT_EQ(std::memcmp(content.tensors[1].bytes.data(), "wxyz", 4), 0);
  EXPECT_EQ(content.metadata, (SafetensorsMetadata{{"format", "pt"}}));
}

TEST(Safetensors, NoTensorsAndEmptyTensors) {
  EXPECT_TRUE(parse(file_text("{}", "")).tensors.empty());
  const SafetensorsContent content = parse(file_text(
      R"({"e":{"dtype":"I64","shape":[0,5],"data_offsets":[1,1]},)"
      R"("x":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
      R"("f":{"dtype":"F16","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]}})",
      "x"));
  EXPECT_EQ(content.tensors.size(), 3U);
  EXPECT_EQ(content.tensors[0].name, "f");
}

TEST(Safetensors, RejectsBadLengths) {
  EXPECT_EQ(message_of([] { parse("abc"); }),
            "f.safetensors: not a safetensors file: it has 3 bytes; at least 8 are required");
  EXPECT_EQ(message_of([] { parse(file_text("{}", "", 3)); }),
            "f.safetensors: truncated: a header of 3 bytes in a file of 10 bytes");
  EXPECT_EQ(message_of([] { parse(file_text("{}", "", UINT64_MAX)); }),
            "f.safetensors: not a safetensors file: the header has 18446744073709551615 bytes; at most "
            "100000000 are allowed");
  EXPECT_EQ(header_error(" {}"),
            "f.safetensors: not a safetensors file: expected a header that starts with '{'");
}

TEST(Safetensors, RejectsMalformedHeaders) {
  EXPECT_EQ(header_error("{\"a\":"), "f.safetensors: the header is not valid JSON at byte 6");
  EXPECT_EQ(header_error("{} x"), "f.safetensors: the header is not valid JSON at byte 4");
  EXPECT_EQ(
      header_error(R"({"a":3})"),
      "f.safetensors: header: 'a': expected an object with dtype, shape and data_offsets, got a number");
  EXPECT_EQ(header_error(R"({"a":{"dtype":"F32","shape":[1]}})"),
            "f.safetensors: tensor 'a': data_offsets is missing");
  EXPECT_EQ(header_error(R"({"a":{"dtype":"F8_E4M3"}})"),
            "f.safetensors: tensor 'a': dtype 'F8_E4M3' is not one of F64, F32, BF16, F16, I64, I32, I16, "
            "I8, U8, BOOL");
  EXPECT_EQ(header_error(R"({"a":{"shape":[-1]}})"),
            "f.safetensors: tensor 'a': 'shape': expected non-negative integers, got a negative number");
  EXPECT_EQ(header_error(R"({"a":{"shape":7}})"),
            "f.safetensors: tensor 'a': 'shape': expected a list of integers, got a number");
  EXPECT_EQ(header_error(R"({"a":{"strides":[1]}})"),
            "f.safetensors: tensor 'a': unknown key 'strides'; expected dtype, shape or data_offsets");
  EXPECT_EQ(header_error(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0]}})"),
            "f.safetensors: tensor 'a': data_offsets: expected [begin, end], got 1 numbers");
  EXPECT_EQ(header_error(R"({"__metadata__":{"x":1}})"),
            "f.safetensors: __metadata__: 'x': expected a string, got a number");
  EXPECT_EQ(header_error(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})"),
            "f.safetensors: 'a' is listed twice");
  std::string many = "0";
  for (int i = 0; i < 64; ++i) many += ",0";
  EXPECT_EQ(header_error(R"({"a":{"shape":[)" + many + "]}}"),
            "f.safetensors: tensor 'a': 'shape': expected non-negative integers, got more than 64 numbers");
  EXPECT_NE(header_error("{\"a\":" + std::string(100'000, '[')), "");
}

TEST(Safetensors, RejectsInconsistentSizes) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(header_error(one("[1]", "[0,4]"), "abc"),
            "f.safetensors: tensor 'a': data_offsets [0, 4] are not inside the 3 bytes of data");
  EXPECT_EQ(header_error(one("[1]", "[4,0]"), "abcd"),
            "f.safetensors: tensor 'a': data_offsets [4, 0] are not inside the 4 bytes of data");
  EXPECT_EQ(header_error(one("[2]", "[0,4]"), "abcd"),
            "f.safetensors: tensor 'a': the data has 4 bytes, but F32 with shape [2] requires 8");
  EXPECT_EQ(header_error(one("[4611686018427387905,4]", "[0,4]"), "abcd"),
            "f.safetensors: tensor 'a': the data has 4 bytes, but F32 with shape [4611686018427387905, 4] "
            "requires more than a file can contain");
  EXPECT_EQ(header_error(one("[1]", "[0,4]"), "abcde"),
            "f.safetensors: 1 bytes after the last tensor do not belong to any tensor");
  EXPECT_EQ(header_error(one("[1]", "[1,5]"), "abcde"),
            "f.safetensors: tensor 'a': expected to begin at byte 0 of the data, got 1; tensors must not "
            "overlap or leave gaps");
  EXPECT_EQ(header_error(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                         R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                         "abcde"),
            "f.safetensors: tensor 'b': expected to begin at byte 3 of the data, got 2; tensors must not "
            "overlap or leave gaps");
}

std::string bytes_of(const TensorHeader& tensor, std::uint64_t seed) {
  std::string bytes(static_cast<std::size_t>(tensor.num_bytes()), '\0');
  for (char& byte : bytes)
    byte = static_cast<char>(seed = seed * 6364136223846793005ULL + 1442695040888963407ULL);
  return bytes;
}

TEST(Safetensors, RoundTripsWrittenFiles) {
  const TemporaryFolder folder;
  RealFileSystem files;
  EXPECT_TRUE(rc::check([&] {
    std::vector<TensorHeader> tensors;
    const auto count = *rc::gen::inRange(0, 8);
    for (int i = 0; i < count; ++i) {
      const auto type = static_cast<ElementType>(*rc::gen::inRange(0, 10));
      const auto shape = *rc::gen::container<std::vector<std::int64_t>>(*rc::gen::inRange(0, 4),
                                                                        rc::gen::inRange<std::int64_t>(0, 5));
      tensors.push_back({fmt::format("{}.\"\\ü\n{}", *rc::gen::arbitrary<bool>(), i), type, shape});
    }
    const SafetensorsMetadata metadata{{"format", "pt"}, {"a\"b", "ö"}};
    const Path path = folder / "x.safetensors";
    SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, path, tensors, metadata));
    for (const TensorHeader& tensor : tensors) {
      const std::string bytes = bytes_of(tensor, tensor.name.size());
      const std::size_t cut = bytes.size() / 3;
      value_or_throw(writer.write(std::as_bytes(std::span(bytes).subspan(0, cut))));
      value_or_throw(writer.write(std::as_bytes(std::span(bytes).subspan(cut))));
    }
    value_or_throw(writer.commit());
    const SafetensorsFile file = SafetensorsFile::open(path);
    RC_ASSERT(file.metadata() == metadata);
    RC_ASSERT(file.tensors().size() == tensors.size());
    for (const TensorHeader& tensor : tensors) {
      const StoredTensor* const found = file.find(tensor.name);
      RC_ASSERT(found != nullptr);
      RC_ASSERT(static_cast<const TensorHeader&>(*found) == tensor);
      const std::string bytes = bytes_of(tensor, tensor.name.size());
      RC_ASSERT(
          std::equal(found->bytes.begin(), found->bytes.end(), std::as_bytes(std::span(bytes)).begin()));
    }
  }));
}

TEST(Safetensors, DataStartsAtAMultipleOfEight) {
  const TemporaryFolder folder;
  RealFileSystem files;
  for (int length = 1; length <= 9; ++length) {
    const std::vector<TensorHeader> tensors{
        {std::string(static_cast<std::size_t>(length), 'n'), ElementType::u8, {0}}};
    value_or_throw(value_or_throw(SafetensorsWriter::create(files, folder / "x", tensors)).commit());
    EXPECT_EQ(std::filesystem::file_size(folder / "x") % 8, 0U);
    std::filesystem::remove(folder / "x");
  }
}

TEST(Safetensors, FullDiskLeavesNoFile) {
  const std::vector<TensorHeader> tensors{{"a", ElementType::u8, {3'000'000}}};
  const std::string bytes(3'000'000, 'x');
  int failures = 0;
  for (bool has_failed = true; has_failed; ++failures) {
    const TemporaryFolder folder;
    FailingFileSystem files(failures);
    const auto attempt = [&]() -> Outcome<void> {
      Outcome<SafetensorsWriter> writer = SafetensorsWriter::create(files, folder / "x", tensors);
      if (!writer) return tl::unexpected(writer.error());
      if (Outcome<void> done = writer->write(std::as_bytes(std::span(bytes))); !done) return done;
      return writer->commit();
    };
    const Outcome<void> done = attempt();
    has_failed = files.has_failed();
    EXPECT_EQ(done.has_value(), !has_failed);
    const auto names = folder.names();
    EXPECT_TRUE(names.empty() || names == std::vector<std::string>{"x"});
    if (!names.empty()) {
      EXPECT_EQ(SafetensorsFile::open(folder / "x").tensors()[0].bytes.size(), 3'000'000U);
    }
  }
  EXPECT_GT(failures, 4);
}

std::string small_file(const std::string& tensor) {
  return file_text("{\"" + tensor + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                   tensor.substr(0, 1));
}

TEST(SafetensorsFolder, ReadsShardsThroughTheIndex) {
  const TemporaryFolder folder;
  folder.write("m-1.safetensors", small_file("a"));
  folder.write("m-2.safetensors", small_file("b"));
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":2},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const SafetensorsFolder weights = SafetensorsFolder::open(folder.path());
  EXPECT_EQ(weights.files().size(), 2U);
  EXPECT_EQ(static_cast<char>(weights.find("b").tensor->bytes[0]), 'b');
  EXPECT_EQ(weights.find("b").file->path().filename(), "m-2.safetensors");
  EXPECT_FALSE(weights.find("c"));
  // A single file has precedence over the index, as in transformers.
  folder.write("model.safetensors", small_file("c"));
  EXPECT_TRUE(SafetensorsFolder::open(folder.path()).find("c"));
  EXPECT_TRUE(SafetensorsFolder::open(folder / "m-1.safetensors").find("a"));
}

TEST(SafetensorsFolder, RejectsInconsistentIndex) {
  const TemporaryFolder folder;
  const std::string here = folder.path().string();
  const auto refused = [&] { return message_of([&] { SafetensorsFolder::open(folder.path()); }); };
  EXPECT_EQ(refused(), here + ": found neither model.safetensors nor model.safetensors.index.json");
  folder.write("pytorch_model.bin", "x");
  EXPECT_EQ(refused(), here +
                           ": found neither model.safetensors nor model.safetensors.index.json; "
                           "convert pytorch_model.bin to safetensors first");
  const std::string index = here + "/model.safetensors.index.json";
  const auto write_index = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}");
  };
  write_index("{}");
  EXPECT_EQ(refused(), index + ": weight_map contains no tensor");
  write_index(R"({"a":"../m.safetensors"})");
  EXPECT_EQ(refused(),
            index +
                ": weight_map.a: expected the name of a .safetensors file in the index's folder, got "
                "'../m.safetensors'");
  write_index(R"({"a":"m-1.safetensors"})");
  EXPECT_EQ(refused(), "cannot open " + here + "/m-1.safetensors: No such file or directory");
  folder.write("m-1.safetensors", small_file("b"));
  EXPECT_EQ(refused(),
            here + "/m-1.safetensors: tensor 'a' is missing, although the index assigns it to this file");
  folder.write("m-1.safetensors", small_file("a"));
  folder.write("m-2.safetensors", small_file("a"));
  write_index(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  EXPECT_EQ(refused(), here + "/m-2.safetensors: tensor 'a' is also in m-1.safetensors");
}

}  // namespace
}  // namespace optimus
