// One declaration provides the flag, the file key, the origin and the resolved settings.
#include "base/options.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"

namespace optimus {
namespace {

enum class Color { red, green };

struct Settings {
  std::string model = "gpt2";
  std::int64_t min_tokens = 0;
  double rate = 0.5;
  bool dedup = false;
  std::optional<std::int64_t> layers;
  std::vector<std::string> exclude;
  std::int64_t tokens = 0;
  int threads = 0;
  Color color = Color::red;
};

void declare(OptionTable& table, Settings& s) {
  table.add("model", s.model, "M", "the model");
  table.add("min-tokens", s.min_tokens, "N", "shortest document");
  table.add("rate", s.rate, "R", "a rate");
  table.add("dedup", s.dedup, "drop duplicates");
  table.add("layers", s.layers, "N", "layers");
  table.add("exclude", s.exclude, "FILE", "held-out files");
  table.add("tokens", s.tokens, "N", "number of tokens");
  table.add("threads", s.threads, "N", "number of threads");
  table.add_choice<Color>("color", s.color, {{"red", Color::red}, {"green", Color::green}}, "a colour");
}

TEST(Options, FlagOverridesFileAndOriginIsRecorded) {
  const TemporaryFolder folder;
  const Path file =
      folder.write("run.toml",
                   "model = \"llama\"\nmin_tokens = 128\n[group]\nexclude = [\"a\", \"b\"]\ndedup = true\n"
                   "tokens = \"15T\"\ncolor = \"green\"\nelsewhere = 3\n");
  Settings s;
  OptionTable table;
  declare(table, s);
  table.set(*table.find("model"), {"bert"}, Origin::flag);
  const std::vector<std::string> elsewhere = {"elsewhere"};
  read_config_file(table, file, elsewhere);
  EXPECT_EQ(s.model, "bert");  // the flag has precedence, although the file was read later
  EXPECT_EQ(s.min_tokens, 128);
  EXPECT_EQ(s.exclude, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(s.dedup);
  EXPECT_EQ(s.tokens, 15'000'000'000'000);
  EXPECT_EQ(s.color, Color::green);
  const std::string resolved = table.resolved_toml();
  EXPECT_NE(resolved.find("model = \"bert\"  # flag\n"), std::string::npos);
  EXPECT_NE(resolved.find("rate = 0.5  # default\n"), std::string::npos);
  EXPECT_NE(resolved.find(fmt::format("min-tokens = 128  # {}:2\n", file.string())), std::string::npos);
  EXPECT_EQ(resolved.find("layers"), std::string::npos);  // unset

  // The saved settings read back as the same settings.
  const Path again = folder.write("settings.toml", resolved);
  Settings t;
  OptionTable second;
  declare(second, t);
  read_config_file(second, again);
  EXPECT_EQ(t.model, "bert");
  EXPECT_EQ(t.exclude, s.exclude);
  EXPECT_EQ(t.color, Color::green);
}

TEST(Options, FileErrorsNameFileLineAndNearestKey) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& content) {
    const Path file = folder.write("bad.toml", content);
    Settings s;
    OptionTable table;
    declare(table, s);
    std::string message = message_of([&] { read_config_file(table, file); });
    return message.starts_with(folder.path().string()) ? message.substr(folder.path().string().size() + 1)
                                                       : message;
  };
  EXPECT_EQ(refuse("# comment\nmodle = \"gpt2\"\n"),
            "bad.toml:2: unknown key 'modle'; did you mean 'model'?");
  EXPECT_EQ(refuse("\nmin-tokens = \"many\"\n"),
            "bad.toml:2: --min-tokens: 'many' is not a count such as 1000, 300k or 15T");
  EXPECT_EQ(refuse("color = \"gren\"\n"),
            "bad.toml:1: --color: 'gren' is not one of red, green; did you mean 'green'?");
  EXPECT_EQ(refuse("model = [1]\n"), "bad.toml:1: model: expected a single value");
  EXPECT_TRUE(refuse("model = \n").starts_with("bad.toml:1: not valid TOML")) << refuse("model = \n");
  EXPECT_TRUE(refuse("# é\nmodel = \"é\"\n\xef\xbb\x9d = 1\n").starts_with("bad.toml:3: not valid TOML"));
  EXPECT_EQ(refuse("\xef\xbb\xbfmodel = 'é 100 %' # é\n"), "");
  EXPECT_TRUE(refuse("[=]\n").starts_with("bad.toml:1: not valid TOML")) << refuse("[=]\n");
  EXPECT_TRUE(refuse("\n[é]\n").starts_with("bad.toml:2: not valid TOML")) << refuse("\n[é]\n");
  EXPECT_TRUE(refuse("\n[\x02n").starts_with("bad.toml:2: not valid TOML")) << refuse("\n[\x02n");
  EXPECT_EQ(refuse("dedup = 3\n"), "bad.toml:1: --dedup: '3' is not true or false");
}

TEST(Options, FileStringsKeepUnicode) {
  const TemporaryFolder folder;
  Settings s;
  OptionTable table;
  declare(table, s);
  read_config_file(table, folder.write("run.toml", "model = \"wörter 漢字 100 % %41\"\n"));
  EXPECT_EQ(s.model, "wörter 漢字 100 % %41");
}

TEST(Options, DecodesEscapedCharacters) {
  const TemporaryFolder folder;
  const auto model_in = [&](const std::string& content) {
    Settings s;
    OptionTable table;
    declare(table, s);
    read_config_file(table, folder.write("run.toml", content));
    return s.model;
  };
  EXPECT_EQ(model_in("model = \"\\u002541 é % ~\"\n"), "%41 é % ~");
  EXPECT_EQ(model_in("model = \"\\U0000002541 \\u007E41 é\"\n"), "%41 ~41 é");
  EXPECT_EQ(model_in("model = '\\u002541 é'\n"), "\\u002541 é");  // no escapes between single quotes
  EXPECT_EQ(model_in("model = \"\\\\u002541 é\"\n"), "\\u002541 é");
  std::string all;
  for (int sign = 0x21; sign < 0x7f; ++sign) all += fmt::format("\\u{:04x}", sign);
  EXPECT_NE(message_of([&] { model_in("model = \"" + all + "\"\n"); }).find("write some of them literally"),
            std::string::npos);
}

TEST(Options, RejectsDuplicateKeys) {
  const TemporaryFolder folder;
  const std::vector<std::string> elsewhere = {"lr"};
  const auto refuse = [&](const std::string& content) {
    Settings s;
    OptionTable table;
    declare(table, s);
    const std::string message =
        message_of([&] { read_config_file(table, folder.write("run.toml", content), elsewhere); });
    return message.substr(std::min(message.size(), message.find("run.toml")));
  };
  EXPECT_EQ(refuse("[b]\nmodel = \"x\"\n[a]\nmodel = \"y\"\n"),
            "run.toml:4: key 'model' is already set on line 2");
  EXPECT_EQ(refuse("min_tokens = 1\nmin-tokens = 2\n"),
            "run.toml:2: key 'min-tokens' is already set on line 1");
  EXPECT_EQ(refuse("lr = 1\n[other]\nlr = 2\n"), "run.toml:3: key 'lr' is already set on line 1");
}

TEST(Options, NumbersMustBeWholeAndFinite) {
  Settings s;
  OptionTable table;
  declare(table, s);
  EXPECT_THROW(table.set(*table.find("rate"), {"nan"}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("rate"), {"1e999"}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("layers"), {"4x"}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("layers"), {""}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("layers"), {"99999999999999999999"}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("layers"), {"1.5"}, Origin::flag), UserError);
  EXPECT_THROW(table.set(*table.find("threads"), {"3G"}, Origin::flag), UserError);
}

TEST(Options, DurationsRoundTrip) {
  for (const auto& [seconds, words] :
       {std::pair{0.25, "0.25s"}, {90.0, "90s"}, {600.0, "10m"}, {7200.0, "2h"}}) {
    EXPECT_EQ(short_duration_text(Seconds(seconds)), words);
    Seconds back{0};
    option_value::parse(back, words, "--timeout");
    EXPECT_EQ(back.value, seconds);
  }
}

TEST(Options, IntegersAcceptCountSuffixes) {
  Settings s;
  OptionTable table;
  declare(table, s);
  table.set(*table.find("min-tokens"), {"1.1k"}, Origin::flag);
  table.set(*table.find("layers"), {" 2M "}, Origin::flag);
  table.set(*table.find("threads"), {"1k"}, Origin::flag);
  table.set(*table.find("tokens"), {"-3"}, Origin::flag);
  EXPECT_EQ(s.min_tokens, 1100);
  EXPECT_EQ(s.layers, 2'000'000);
  EXPECT_EQ(s.threads, 1000);
  EXPECT_EQ(s.tokens, -3);
}

}  // namespace
}  // namespace optimus
