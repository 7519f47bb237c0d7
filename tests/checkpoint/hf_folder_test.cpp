// The files of a Hugging Face folder other than its weights. tests/parity/hf_parity.py checks that
// transformers opens it.
#include "checkpoint/hf_folder.h"

#include <gtest/gtest.h>

#include "base/failing_file_system.h"
#include "base/json.h"
#include "base/temporary_folder.h"
#include "data/tiny_tokenizers.h"
#include "model/hf_config.h"
#include "model/random_spec.h"

#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

std::vector<std::string> names_of(const std::vector<SmallFile>& files) {
  std::vector<std::string> names;
  for (const SmallFile& file : files) names.push_back(file.name);
  return names;
}

Json content_of(const std::vector<SmallFile>& files, const std::string& name) {
  for (const SmallFile& file : files)
    if (file.name == name) return Json::parse(file.content);
  return nullptr;
}

ModelSpec spec_of(Family family) {
  for (std::uint64_t seed = 0;; ++seed)
    if (ModelSpec spec = random_spec(seed); spec.family == family) {
      spec.vocab = 300;
      return spec;
    }
}

TEST(HfFolder, ByteTokenizerExportsIdsOfBytes) {
  const std::vector<SmallFile> files = hf_tokenizer_files("bytes");
  EXPECT_EQ(names_of(files), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  const auto read = parse_tokenizer(files[0].content, "tokenizer.json");
  EXPECT_EQ(read->vocab_size(), 257);
  EXPECT_EQ(read->end_of_document(), 256);
  EXPECT_TRUE(read->is_special(256));
  std::string text;  // every code point up to U+07FF, and some with three and four bytes
  for (CodePoint point = 0; point < 0x800; ++point) append_utf8(point, text);
  for (CodePoint point = 0x800; point < 0x10F000; point += 0x3FD)
    if (point < 0xD800 || point > 0xDFFF) append_utf8(point, text);
  EXPECT_EQ(encoded(*read, text), encoded(*byte_tokenizer(), text));
  EXPECT_EQ(read->decode(encoded(*read, text), true), text);
  const TemporaryFolder folder;
  const auto known = load_tokenizer(folder.write("tokenizer.json", files[0].content));
  EXPECT_EQ(encoded(*known, "<|endoftext|>").size(), 13u);  // encoded as plain bytes
}

TEST(HfFolder, CopiesTokenizerCompanionFiles) {
  const TemporaryFolder folder;
  const std::string table = hello_json().dump();
  folder.write("tokenizer.json", table);
  folder.write("tokenizer_config.json", "{\"a\": 1}");
  folder.write("merges.txt", "x y\n");
  folder.write("secret.txt", "no");
  folder.write("own.json", table);
  const std::vector<std::string> all{"tokenizer.json", "tokenizer_config.json", "merges.txt"};
  EXPECT_EQ(names_of(hf_tokenizer_files(folder.path().string())), all);
  EXPECT_EQ(names_of(hf_tokenizer_files((folder / "tokenizer.json").string())), all);
  const std::vector<SmallFile> alone = hf_tokenizer_files((folder / "own.json").string());
  EXPECT_EQ(names_of(alone), (std::vector<std::string>{"tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(alone[0].content, table);
  EXPECT_EQ(content_of(alone, "tokenizer_config.json").at("tokenizer_class"), "PreTrainedTokenizerFast");
  const TemporaryFolder empty;
  EXPECT_TRUE(hf_tokenizer_files(empty.path().string()).empty());
  EXPECT_NE(message_of([&] { hf_tokenizer_files((folder / "none.json").string()); }).find("none.json"),
            std::string::npos);
}

TEST(HfFolder, DescriptionRoundTripsForEveryFamily) {
  for (const FamilyTraits& family : all_families()) {
    if (family.is_mixture) continue;
    const ModelSpec spec = spec_of(family.family);
    const std::vector<SmallFile> files = hf_description({spec, ElementType::bf16, "bytes", {}});
    const Json config = Json::parse(files.back().content);
    EXPECT_EQ(files.back().name, "config.json");
    EXPECT_EQ(spec_from_hf_config(config, "config.json"), spec);
    EXPECT_EQ(config.at("dtype"), "bfloat16");
    const Json generation = content_of(files, "generation_config.json");
    EXPECT_EQ(generation.is_null(), !spec.is_causal) << family.model_type;
    if (!spec.is_causal) continue;
    EXPECT_EQ(generation.at("eos_token_id"), 256);
    EXPECT_EQ(config.at("eos_token_id"), 256);
  }
}

TEST(HfFolder, PreservesSettingsOfOrigin) {
  const TemporaryFolder origin;
  const ModelSpec spec = spec_of(Family::llama);
  origin.write("config.json", R"({"bos_token_id": 1, "eos_token_id": [2, 7]})");
  EXPECT_EQ(hf_end_tokens(origin.path()), (std::vector<TokenId>{2, 7}));
  const HfDescription description{spec, ElementType::f32, "", origin.path()};
  EXPECT_EQ(content_of(hf_description(description), "config.json").at("eos_token_id"), Json::array({2, 7}));
  EXPECT_EQ(content_of(hf_description(description), "generation_config.json").at("bos_token_id"), 1);
  origin.write("generation_config.json", R"({"eos_token_id": 5, "top_p": 0.5})");
  EXPECT_EQ(hf_end_tokens(origin.path()), std::vector<TokenId>{5});
  EXPECT_EQ(content_of(hf_description(description), "generation_config.json").at("top_p"), 0.5);
  origin.write("generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_NE(message_of([&] { hf_end_tokens(origin.path()); }).find("eos_token_id"), std::string::npos);
  origin.write("generation_config.json", "{");
  EXPECT_NE(message_of([&] { hf_end_tokens(origin.path()); }).find("generation_config.json"),
            std::string::npos);
  EXPECT_TRUE(hf_end_tokens(origin / "none").empty());
}

TEST(HfFolder, FullDiskLeavesNoConfig) {
  const std::vector<SmallFile> all = hf_description({spec_of(Family::gpt2), ElementType::f32, "bytes", {}});
  int calls = 0;
  for (bool has_failed = true; has_failed; ++calls) {
    const TemporaryFolder folder;
    FailingFileSystem files(calls);
    const Outcome<void> done = write_files(files, folder.path(), all);
    has_failed = files.has_failed();
    EXPECT_EQ(done.has_value(), !has_failed);
    if (done) {
      EXPECT_EQ(folder.names().size(), all.size());
    }
  }
  EXPECT_GT(calls, 8);
}

}  // namespace
}  // namespace optimus
