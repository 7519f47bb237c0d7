// Megatron's token files and llm.c's shards: round trips, unusual but valid files, malicious files, disk
// failures.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>

#include "base/failing_file_system.h"
#include "base/temporary_folder.h"
#include "data/megatron_file.h"

namespace optimus {
namespace {

using Documents = std::vector<std::vector<TokenId>>;

Documents read_all(const TokenSet& set) {
  Documents documents;
  for (std::int64_t d = 0; d < set.num_documents(); ++d) {
    documents.emplace_back(static_cast<std::size_t>(set.document_start(d + 1) - set.document_start(d)));
    set.read(set.document_start(d), documents.back());
  }
  return documents;
}

void write(const Path& prefix, const Documents& documents, TokenType type) {
  RealFileSystem files;
  MegatronWriter writer = value_or_throw(MegatronWriter::create(files, prefix, type));
  for (const auto& document : documents) value_or_throw(writer.add(document));
  value_or_throw(writer.finish());
}

template <typename... Numbers>
std::string packed(Numbers... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

std::string header(std::uint64_t sequences, std::uint64_t bounds, std::uint8_t code = 8,
                   std::uint64_t version = 1) {
  return std::string(kMegatronMagic) + packed(version, code, sequences, bounds);
}

TEST(MegatronFile, RoundTripsBothTypes) {
  const TemporaryFolder folder;
  EXPECT_TRUE(rc::check([&](bool is_wide) {
    const auto token = rc::gen::inRange<TokenId>(0, is_wide ? 2'000'000'000 : 65'536);
    const auto documents = *rc::gen::container<Documents>(rc::gen::container<std::vector<TokenId>>(token));
    write(folder / "t", documents, is_wide ? TokenType::int32 : TokenType::uint16);
    const auto set = open_megatron(folder / "t");
    RC_ASSERT(read_all(*set) == documents);
    for (std::int64_t p = 0; p < set->num_tokens(); ++p) {
      const std::int64_t d = set->document_of(p);
      RC_ASSERT(set->document_start(d) <= p && p < set->document_start(d + 1));
    }
  }));
  EXPECT_EQ(token_type_for(65'499), TokenType::uint16);
  EXPECT_EQ(token_type_for(65'500), TokenType::int32);
}

TEST(MegatronFile, SequencesMayBeInAnyOrder) {
  const TemporaryFolder folder;
  folder.write("t.bin", packed<std::uint16_t, std::uint16_t, std::uint16_t, std::uint16_t>(10, 11, 12, 13));
  // Three sequences, stored in reverse order; the first document consists of two of them.
  folder.write("t.idx", header(3, 3) + packed(1, 1, 2) +
                            packed(std::int64_t{6}, std::int64_t{4}, std::int64_t{0}) +
                            packed(std::int64_t{0}, std::int64_t{2}, std::int64_t{3}));
  EXPECT_EQ(read_all(*open_megatron(folder / "t")), (Documents{{13, 12}, {10, 11}}));
}

TEST(MegatronFile, RejectsMaliciousIndexes) {
  const TemporaryFolder folder;
  folder.write("t.bin", std::string(8, '\0'));
  const auto refuse = [&](const std::string& index) {
    folder.write("t.idx", index);
    const std::string message = message_of([&] { open_megatron(folder / "t"); });
    EXPECT_NE(message.find("t.idx"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  };
  const auto ends = packed(std::int64_t{0}, std::int64_t{1});
  EXPECT_NE(refuse("").find("expected a token index of at least 34 bytes, got 0"), std::string::npos);
  EXPECT_NE(refuse(std::string(40, 'x')).find("expected MMIDIDX"), std::string::npos);
  EXPECT_NE(refuse(header(0, 1, 8, 2)).find("version 2"), std::string::npos);
  EXPECT_NE(refuse(header(0, 1, 7)).find("expected element type 1, 2, 3, 4, 5 or 8, got 7"),
            std::string::npos);
  EXPECT_NE(refuse(header(std::uint64_t{1} << 61, 1)).find("do not fit"), std::string::npos);
  EXPECT_NE(refuse(header(~0ULL, ~0ULL)).find("do not fit"), std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(-1, std::int64_t{0}) + ends).find("non-negative length, got -1"),
            std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(5, std::int64_t{0}) + ends).find("lies outside"), std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(1, std::int64_t{-2}) + ends).find("lies outside"),
            std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(1, INT64_MAX) + ends).find("lies outside"), std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(1, std::int64_t{0}) + packed(std::int64_t{0}, std::int64_t{2}))
                .find("document bound"),
            std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(1, std::int64_t{0}) + packed(std::int64_t{0}, std::int64_t{0}))
                .find("last document bound"),
            std::string::npos);
  EXPECT_NE(refuse(header(1, 2) + packed(1, std::int64_t{0}) + ends + "tail").find("too long"),
            std::string::npos);
  std::filesystem::remove(folder / "t.bin");
  EXPECT_NE(message_of([&] { open_megatron(folder / "t"); }).find("t.bin: No such file"), std::string::npos);
}

TEST(MegatronFile, FullDiskLeavesNoMixedPair) {
  for (int calls = 0; calls < 12; ++calls) {
    const TemporaryFolder folder;
    write(folder / "t", {{1, 2, 3}}, TokenType::uint16);
    FailingFileSystem files(calls);
    const auto attempt = [&]() -> Outcome<void> {
      Outcome<MegatronWriter> writer = MegatronWriter::create(files, folder / "t", TokenType::uint16);
      if (!writer) return tl::unexpected(writer.error());
      const std::vector<TokenId> document(2 << 20, 7);
      if (auto done = writer->add(document); !done) return done;
      return writer->finish();
    };
    const Outcome<void> done = attempt();
    EXPECT_EQ(!done, files.has_failed());
    // The old pair, no pair, or (if only the last sync failed) the new pair remains, never a mixture.
    if (std::filesystem::exists(folder / "t.idx")) {
      const auto tokens = open_megatron(folder / "t")->num_tokens();
      EXPECT_TRUE(tokens == 3 || tokens == 2 << 20) << tokens;
    }
    for (const std::string& name : folder.names()) EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
  }
}

std::string shard(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  return packed(magic, version, count) + std::string(1024 - 12, '\0') + tokens;
}

TEST(LlmcFile, ReadsShardsAsOneStream) {
  const TemporaryFolder folder;
  const auto words = [](auto... tokens) { return packed(static_cast<std::uint16_t>(tokens)...); };
  const Path a = folder.write("a.bin", shard(20240520, 1, 4, words(50256, 1, 2, 50256)));
  const Path b = folder.write("b.bin", shard(20240520, 1, 2, words(3, 65535)));
  const auto set = open_llmc({a, b});
  EXPECT_TRUE(is_llmc_shard(a));
  EXPECT_EQ(set->num_tokens(), 6);
  EXPECT_EQ(read_all(*set), (Documents{{50256, 1, 2}, {50256, 3, 65535}}));
  const Path c = folder.write("c.bin", shard(20240801, 7, 1, packed(std::uint32_t{128000})));
  EXPECT_EQ(read_all(*open_llmc({c})), (Documents{{128000}}));
  EXPECT_NE(message_of([&] { open_llmc({a, c}); }).find("uint32"), std::string::npos);
  const Path lying = folder.write("d.bin", shard(20240520, 1, 4, words(1)));
  EXPECT_NE(
      message_of([&] { open_llmc({lying}); }).find("the header specifies 4 tokens, but the file contains 1"),
      std::string::npos);
  const Path old = folder.write("e.bin", shard(20240520, 9, 0, ""));
  EXPECT_NE(message_of([&] { open_llmc({old}); }).find("expected version 1, got 9"), std::string::npos);
}

}  // namespace
}  // namespace optimus
