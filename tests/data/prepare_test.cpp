// Conversion of raw text to tokens: readers, filters, order, errors for invalid input.
#include "data/prepare.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "data/fake_tokenizer.h"
#include "data/open.h"

namespace optimus {
namespace {

struct CollectingSink final : EventSink {
  std::vector<std::string> warnings;
  void report(const Event& event) override {
    if (const auto* warning = std::get_if<Warning>(&event)) warnings.push_back(warning->text);
  }
};

std::vector<std::string> texts_of(const PrepareOptions& options, PrepareSummary* summary = nullptr) {
  CollectingSink events;
  std::vector<std::string> texts;
  const PrepareSummary got =
      tokenize_documents(options, FakeTokenizer(), events, [&](std::vector<TokenId> tokens) {
        EXPECT_EQ(tokens.back(), 256);
        texts.emplace_back(tokens.begin(), tokens.end() - 1);
      });
  if (summary != nullptr) *summary = got;
  return texts;
}

TEST(Prepare, JsonlTextAndFoldersInOrder) {
  const TemporaryFolder folder;
  folder.write("in/b.txt", "bee");
  folder.write("in/a/x.jsonl", "{\"text\": \"one\"}\n\n  \n{\"text\": \"t\\u00fc\"}\r\n{\"text\": \"\"}");
  folder.write("in/.hidden/c.txt", "no");
  folder.write("in/z.dat", std::string("\0\1\2", 3));
  PrepareOptions options;
  options.inputs = {(folder / "in").string()};
  CollectingSink events;
  std::vector<std::string> texts;
  const PrepareSummary summary = tokenize_documents(
      options, FakeTokenizer(), events,
      [&](std::vector<TokenId> tokens) { texts.emplace_back(tokens.begin(), tokens.end() - 1); });
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "tü", "bee"}));
  EXPECT_EQ(summary.dropped_empty, 1);
  ASSERT_EQ(events.warnings.size(), 1u);
  EXPECT_NE(events.warnings[0].find("skipped 1 of 3 files that are not text"), std::string::npos);
}

TEST(Prepare, FiltersShortDuplicateAndHeldOut) {
  const TemporaryFolder folder;
  const Path in = folder.write(
      "in.jsonl",
      "{\"text\": \"tiny\"}\n{\"text\": \"a longer text\"}\n{\"text\": \"a longer text\"}\n"
      "{\"text\": \"the held   out document\"}\n"
      "{\"text\": \"starts here w1 w2 w3 w4 w5 and ends\"}\n{\"text\": \"w1 w2 w3 w4 but not the fifth\"}\n");
  const Path held = folder.write(
      "held.jsonl", "{\"text\": \"the held out\\ndocument\"}\n{\"text\": \"x w1 w2 w3 w4 w5 y\"}\n");
  PrepareOptions options;
  options.inputs = {in.string()};
  options.filters = {.min_tokens = 5, .dedup = true, .exclude = {held.string()}, .overlap_words = 5};
  PrepareSummary summary;
  EXPECT_EQ(texts_of(options, &summary),
            (std::vector<std::string>{"a longer text", "w1 w2 w3 w4 but not the fifth"}));
  EXPECT_EQ(summary.dropped_short, 1);
  EXPECT_EQ(summary.dropped_duplicate, 1);
  EXPECT_EQ(summary.dropped_held_out, 2);
  options.filters.overlap_words = 0;  // only whole documents are compared
  EXPECT_EQ(texts_of(options).size(), 3u);
}

TEST(Prepare, WarnsAboutHeldOutTextsWithoutWords) {
  const TemporaryFolder folder;
  PrepareOptions options;
  options.inputs = {folder.write("in.txt", "some words").string()};
  options.filters.exclude = {folder.write("empty.txt", " \n").string(),
                             folder.write("held.txt", "other").string()};
  CollectingSink events;
  const PrepareSummary summary =
      tokenize_documents(options, FakeTokenizer(), events, [](std::vector<TokenId>) {});
  EXPECT_EQ(summary.documents_kept, 1);
  ASSERT_EQ(events.warnings.size(), 1u);
  EXPECT_NE(events.warnings[0].find("empty.txt contains no words"), std::string::npos);
}

TEST(Prepare, IndependentOfNumberOfThreads) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i % 4000);
  PrepareOptions options;
  options.inputs = {folder.write("in.jsonl", lines).string()};
  options.filters.dedup = true;
  options.threads = 1;
  const auto one = texts_of(options);
  EXPECT_EQ(one.size(), 4000u);
  for (const int threads : {2, 5}) {
    options.threads = threads;
    EXPECT_EQ(texts_of(options), one);
  }
}

TEST(Prepare, BadInputNamesLineAndLeavesNoOutput) {
  const TemporaryFolder folder;
  RealFileSystem files;
  NullSink events;
  const auto refuse = [&](const std::string& content, const std::string& name = "in.jsonl") {
    PrepareOptions options;
    options.inputs = {folder.write(name, content).string()};
    const std::string message =
        message_of([&] { prepare_token_files(options, FakeTokenizer(), folder / "out", files, events); });
    EXPECT_EQ(folder.names(), std::vector<std::string>{name}) << message;
    std::filesystem::remove(folder / name);
    return message.substr(std::min(message.size(), message.find(name)));
  };
  EXPECT_EQ(refuse("{\"text\": \"ok\"}\n{\"text\": \n"),
            "in.jsonl: line 2, column 10: not valid JSON at the end of the text");
  EXPECT_EQ(refuse("{\"text\": \"ok\"}\n[1]\n"), "in.jsonl: line 2: expected an object with key 'text'");
  EXPECT_EQ(
      refuse("{\"txt\": \"ok\", \"id\": 1}\n"),
      "in.jsonl: line 1: no key 'text' (found 'id, txt'); set --text-key to the key that contains the text");
  EXPECT_EQ(refuse("{\"text\": 5}\n"), "in.jsonl: line 1: text: expected a string, got '5'");
  EXPECT_NE(refuse("{\"text\": \"\xff\"}\n").find("line 1"), std::string::npos);
  EXPECT_EQ(refuse("{\"text\": \"ok\"}\n{\"text\": \"a\", \"text\": \"b\"}\n"),
            "in.jsonl: line 2, column 20: key 'text' appears twice in one object");
  EXPECT_EQ(refuse(std::string("PK\0\1", 4), "in.zip"),
            "in.zip: not text (zero byte in the first 8 KiB); expected UTF-8 text or jsonl");
  refuse("", "in.txt");
  PrepareOptions options;
  options.inputs = {"absent.txt"};
  EXPECT_NE(message_of([&] {
              prepare_token_files(options, FakeTokenizer(), folder / "out", files, events);
            }).find("absent.txt"),
            std::string::npos);
}

TEST(Prepare, OpensPrefixesAndTextFiles) {
  const TemporaryFolder folder;
  RealFileSystem files;
  NullSink events;
  PrepareOptions options;
  options.inputs = {folder.write("in.txt", "hello").string()};
  prepare_token_files(options, FakeTokenizer(70'000), folder / "v1.2", files, events);
  for (const char* name : {"v1.2", "v1.2.bin", "v1.2.idx"}) {
    EXPECT_TRUE(is_tokenized((folder / name).string())) << name;
    EXPECT_EQ(open_data((folder / name).string(), FakeTokenizer(), events)->dtype(), "int32");
  }
  EXPECT_FALSE(is_tokenized((folder / "in.txt").string()));
  EXPECT_EQ(open_data((folder / "in.txt").string(), FakeTokenizer(), events)->num_tokens(), 6);
  EXPECT_NE(message_of([&] {
              open_data((folder / "none").string(), FakeTokenizer(), events);
            }).find("does not exist"),
            std::string::npos);
  folder.write("stray.bin", "xxxxxxxx");
  EXPECT_NE(message_of([&] {
              open_data((folder / "stray.bin").string(), FakeTokenizer(), events);
            }).find("stray.bin"),
            std::string::npos);
}

}  // namespace
}  // namespace optimus
