// Lets the Python parity test and bench use our tokenizers. Texts and ids travel in files of records: a
// 32-bit little-endian count, then that many bytes (texts) or 32-bit numbers (ids).
//
//   tokenizer_tool encode TOKENIZER TEXTS IDS [specials]   tokenizer_tool decode TOKENIZER IDS TEXTS [skip]
//   tokenizer_tool bench TOKENIZER TEXTS THREADS REPEATS   tokenizer_tool classes OUT
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/units.h"
#include "tokenizer/open_tokenizer.h"
#include "tokenizer/unicode.h"

namespace optimus {
namespace {

template <typename Value>
std::vector<std::vector<Value>> read_records(const char* path) {
  const std::string bytes = value_or_throw(read_file(path));
  std::vector<std::vector<Value>> result;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint32_t count = 0;
    if (bytes.size() - at < 4) throw UserError("{}: cut off", path);
    std::memcpy(&count, bytes.data() + at, 4);
    at += 4;
    if ((bytes.size() - at) / sizeof(Value) < count) throw UserError("{}: cut off", path);
    std::vector<Value>& record = result.emplace_back(count);
    if (count > 0) std::memcpy(record.data(), bytes.data() + at, count * sizeof(Value));
    at += count * sizeof(Value);
  }
  return result;
}

template <typename Records>
void write_records(const Records& records, const char* path) {
  std::string bytes;
  for (const auto& record : records) {
    const auto count = static_cast<std::uint32_t>(record.size());
    bytes.append(reinterpret_cast<const char*>(&count), 4);
    bytes.append(reinterpret_cast<const char*>(record.data()), record.size() * sizeof(record[0]));
  }
  RealFileSystem files;
  value_or_throw(files.remove(path));
  value_or_throw(write_atomically(files, path, bytes));
}

void encode(const Tokenizer& tokenizer, const char* texts, const char* ids, bool with_specials) {
  std::vector<std::vector<TokenId>> result;
  for (const std::vector<char>& text : read_records<char>(texts)) {
    const std::string_view view(text.data(), text.size());
    if (with_specials)
      tokenizer.encode_with_specials(view, result.emplace_back());
    else
      tokenizer.encode(view, result.emplace_back());
  }
  write_records(result, ids);
}

void decode(const Tokenizer& tokenizer, const char* ids, const char* texts, bool skip_special) {
  std::vector<std::string> result;
  for (const std::vector<TokenId>& record : read_records<TokenId>(ids))
    result.push_back(tokenizer.decode(record, skip_special));
  write_records(result, texts);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One line a repeat: seconds and tokens. All texts are encoded; threads take them one by one.
void bench(const char* file, const char* texts_file, int num_threads, int num_repeats) {
  const auto start_of_load = std::chrono::steady_clock::now();
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(file);
  fmt::print("load {}\n", seconds_since(start_of_load));
  const std::vector<std::vector<char>> texts = read_records<char>(texts_file);
  for (int repeat = 0; repeat < num_repeats; ++repeat) {
    std::atomic<std::size_t> next = 0, num_tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < num_threads; ++t)
        threads.emplace_back([&] {
          for (std::size_t i; (i = next++) < texts.size();) {
            std::vector<TokenId> ids;
            tokenizer->encode({texts[i].data(), texts[i].size()}, ids);
            num_tokens += ids.size();
          }
        });
    }
    fmt::print("repeat {} {}\n", seconds_since(start), num_tokens.load());
  }
}

void classes(const char* path) {
  const CharClasses table;
  std::vector<std::vector<std::uint16_t>> records(1);
  for (CodePoint c = 0; c < kNumCodePoints; ++c) records[0].push_back(table.of(c));
  write_records(records, path);
}

int run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "encode" && argc >= 5)
    encode(*open_tokenizer(argv[2]), argv[3], argv[4], argc > 5);
  else if (command == "decode" && argc >= 5)
    decode(*open_tokenizer(argv[2]), argv[3], argv[4], argc > 5);
  else if (command == "bench" && argc == 6)
    bench(argv[2], argv[3], static_cast<int>(parse_count(argv[4], "THREADS")),
          static_cast<int>(parse_count(argv[5], "REPEATS")));
  else if (command == "classes" && argc == 3)
    classes(argv[2]);
  else
    throw UserError("usage: see the head of tests/tools/tokenizer_tool.cpp");
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  try {
    return optimus::run(argc, argv);
  } catch (const optimus::ReportedError& error) {
    std::fprintf(stderr, "tokenizer_tool: %s\n", error.what());
    return 1;
  }
}
