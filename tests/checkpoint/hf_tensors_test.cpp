// Small checkpoints of every family, written and read back; names and peculiarities of published files.
// tests/parity/safetensors_parity.py uses files written by transformers.
#include "checkpoint/hf_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/failing_file_system.h"
#include "base/random.h"
#include "base/temporary_folder.h"
#include "base/text.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

void fill_values(const LogicalTensor& tensor, std::span<double> out) {
  fill_normal(RandomKey(7).derive(tensor.name), tensor.shape, Box(tensor.shape), out);
}

std::vector<double> values_of(const LogicalTensor& tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.shape.num_elements()));
  fill_values(tensor, values);
  return values;
}

void write_model(const Path& folder, const ModelSpec& spec,
                 const HfExport& options = {.type = ElementType::f64}) {
  RealFileSystem files;
  value_or_throw(
      write_hf_weights(files, folder, logical_tensors(spec), ReadTensor<double>(fill_values), options));
}

ModelSpec spec_of(Family family, bool is_tied) {
  for (std::uint64_t seed = 0;; ++seed)
    if (const ModelSpec spec = random_spec(seed); spec.family == family && spec.is_tied == is_tied)
      return spec;
}

class Collected final : public EventSink {
 public:
  std::vector<std::string> warnings;
  void report(const Event& event) override { warnings.push_back(std::get<Warning>(event).text); }
};

TEST(HfTensors, RoundTripsEveryFamily) {
  for (std::uint64_t seed = 0; seed < 42; ++seed) {
    const TemporaryFolder folder;
    const ModelSpec spec = random_spec(seed);
    write_model(folder.path(), spec,
                {.type = ElementType::f64, .max_shard_size = Bytes(seed % 7 == seed / 7 ? 20'000 : 1 << 30)});
    const SafetensorsFolder weights = SafetensorsFolder::open(folder.path());
    Collected events;
    check_hf_weights(weights, spec, events);
    EXPECT_TRUE(events.warnings.empty());
    for (const LogicalTensor& tensor : logical_tensors(spec)) {
      const std::vector<double> expected = values_of(tensor);
      std::vector<double> got(expected.size());
      read_logical(weights, tensor, got);
      ASSERT_EQ(got, expected) << tensor.name << " of seed " << seed;
      Box box(tensor.shape);  // the interior of the tensor
      for (int d = 0; d < box.num_dims; ++d)
        if (box[d].size() > 2) box[d] = {1, box[d].end - 1};
      std::vector<float> part(static_cast<std::size_t>(box.num_elements()));
      read_logical(weights, tensor, box, part);
      const std::int64_t columns = tensor.shape.num_dims == 2 ? tensor.shape[1] : 1;
      const Span across = tensor.shape.num_dims == 2 ? box[1] : Span{0, 1};
      std::size_t at = 0;
      for (std::int64_t row = box[0].begin; row < box[0].end; ++row)
        for (std::int64_t column = across.begin; column < across.end; ++column)
          ASSERT_EQ(part[at++],
                    static_cast<float>(expected[static_cast<std::size_t>(row * columns + column)]))
              << tensor.name << " of seed " << seed;
    }
  }
}

TEST(HfTensors, Gpt2QkvIsOneTransposedTensor) {
  const ModelSpec spec = spec_of(Family::gpt2, true);
  const TemporaryFolder folder;
  write_model(folder.path(), spec);
  const SafetensorsFolder weights = SafetensorsFolder::open(folder.path());
  const StoredTensor* const fused = weights.find("transformer.h.0.attn.c_attn.weight").tensor;
  ASSERT_EQ(fused->shape, (std::vector{spec.hidden, 3 * spec.hidden}));
  const LogicalTensor key = logical_tensors(spec, 1)[4];
  ASSERT_EQ(key.name, "layers.0.attention.k.weight");
  std::vector<double> whole(fused->bytes.size() / 8);
  decode(fused->type, fused->bytes, std::span(whole));
  // Row 1, column 0 of k.
  EXPECT_EQ(whole[static_cast<std::size_t>(spec.hidden + 1)],
            values_of(key)[static_cast<std::size_t>(spec.hidden)]);
}

// Copies the weights of a model into one file under other names; tensors with an empty name are omitted.
using Rename = std::function<std::string(const std::string&)>;
struct Extra {
  TensorHeader header;
  std::string bytes;
};

void write_renamed(const Path& folder, const ModelSpec& spec, const Rename& rename,
                   const std::vector<Extra>& more = {}) {
  const TemporaryFolder original;
  write_model(original.path(), spec);
  const SafetensorsFile file = SafetensorsFile::open(original / "model.safetensors");
  std::vector<TensorHeader> headers;
  std::string bytes;
  for (const StoredTensor& tensor : file.tensors()) {
    const std::string name = rename(tensor.name);
    if (name.empty()) continue;
    headers.push_back({name, tensor.type, tensor.shape});
    bytes.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  for (const Extra& extra : more) headers.push_back(extra.header), bytes += extra.bytes;
  RealFileSystem files;
  SafetensorsWriter writer =
      value_or_throw(SafetensorsWriter::create(files, folder / "model.safetensors", headers));
  value_or_throw(writer.write(std::as_bytes(std::span(bytes))));
  value_or_throw(writer.commit());
}

// The result of the check: the error, or the warnings, one per line.
std::string check_result(const Path& folder, const ModelSpec& spec) {
  Collected events;
  const std::string error =
      message_of([&] { check_hf_weights(SafetensorsFolder::open(folder), spec, events); });
  return error + join(events.warnings, "\n");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  if (const auto at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

void expect_same_values(const Path& folder, const ModelSpec& spec) {
  const SafetensorsFolder weights = SafetensorsFolder::open(folder);
  for (const LogicalTensor& tensor : logical_tensors(spec)) {
    std::vector<double> got(static_cast<std::size_t>(tensor.shape.num_elements()));
    read_logical(weights, tensor, got);
    ASSERT_EQ(got, values_of(tensor)) << tensor.name;
  }
}

TEST(HfTensors, NamesWithoutPrefixAndKnownBuffers) {
  const std::pair<Family, std::string> rows[] = {
      {Family::gpt2, "transformer."}, {Family::llama, "model."}, {Family::bert, "bert."}};
  for (const auto& [family, prefix] : rows) {
    const TemporaryFolder folder;
    const ModelSpec spec = spec_of(family, true);
    const std::vector<Extra> buffers{
        {{"h.0.attn.bias", ElementType::u8, {1, 1, 2, 2}}, "abcd"},
        {{"embeddings.position_ids", ElementType::i64, {1, 1}}, "12345678"},
        {{"layers.0.self_attn.rotary_emb.inv_freq", ElementType::f32, {1}}, "1234"}};
    write_renamed(
        folder.path(), spec, [&](const std::string& name) { return replaced(name, prefix, ""); }, buffers);
    EXPECT_EQ(check_result(folder.path(), spec), "");
    expect_same_values(folder.path(), spec);
  }
}

TEST(HfTensors, AcceptsTensorFlowNames) {
  const TemporaryFolder folder;
  const ModelSpec spec = spec_of(Family::bert, true);
  write_renamed(folder.path(), spec, [](const std::string& name) {
    const std::string gamma = replaced(name, "LayerNorm.weight", "LayerNorm.gamma");
    return replaced(replaced(gamma, "LayerNorm.bias", "LayerNorm.beta"), "cls.predictions.bias",
                    "cls.predictions.decoder.bias");
  });
  EXPECT_EQ(check_result(folder.path(), spec), "");
  expect_same_values(folder.path(), spec);
}

TEST(HfTensors, TiedHeadMustEqualEmbedding) {
  const ModelSpec spec = spec_of(Family::llama, true);
  const TemporaryFolder alone, equal, different;
  const auto as_it_is = [](const std::string& name) { return name; };
  write_renamed(alone.path(), spec, [](const std::string& name) {
    return replaced(name, "model.embed_tokens.weight", "lm_head.weight");
  });
  EXPECT_EQ(check_result(alone.path(), spec), "");
  expect_same_values(alone.path(), spec);

  const std::vector<double> words = values_of(logical_tensors(spec, 0)[0]);
  Extra head{{"lm_head.weight", ElementType::f64, {spec.vocab, spec.hidden}},
             std::string(reinterpret_cast<const char*>(words.data()), words.size() * 8)};
  write_renamed(equal.path(), spec, as_it_is, {head});
  EXPECT_EQ(check_result(equal.path(), spec), "");
  head.bytes.back() ^= 1;
  write_renamed(different.path(), spec, as_it_is, {head});
  EXPECT_EQ(check_result(different.path(), spec),
            (different / "model.safetensors").string() +
                ": tensor 'lm_head.weight' differs from 'model.embed_tokens.weight', but config.json "
                "ties them; "
                "set tie_word_embeddings to false");
}

TEST(HfTensors, ReportsMissingAndMisshapenTensors) {
  ModelSpec spec = spec_of(Family::llama, false);
  const TemporaryFolder folder, odd, integer;
  const std::string missing = "model.layers.0.mlp.up_proj.weight";
  write_renamed(folder.path(), spec, [&](const std::string& name) { return name == missing ? "" : name; });
  EXPECT_EQ(check_result(folder.path(), spec),
            folder.path().string() + ": tensor '" + missing + "' is missing");

  write_model(odd.path(), spec);
  const std::int64_t ffn = spec.ffn++;
  EXPECT_EQ(check_result(odd.path(), spec),
            fmt::format("{}: tensor 'model.layers.0.mlp.gate_proj.weight' has shape [{}, {}], but the model "
                        "requires [{}, {}]",
                        (odd / "model.safetensors").string(), ffn, spec.hidden, ffn + 1, spec.hidden));
  --spec.ffn;

  const std::string bytes(static_cast<std::size_t>(spec.hidden), 'x');
  write_renamed(integer.path(), spec,
                [](const std::string& name) { return name == "model.norm.weight" ? "" : name; },
                {{{"model.norm.weight", ElementType::i8, {spec.hidden}}, bytes}});
  EXPECT_EQ(check_result(integer.path(), spec),
            (integer / "model.safetensors").string() +
                ": tensor 'model.norm.weight': expected type F64, F32, BF16 or F16, got I8");
}

TEST(HfTensors, UnknownTensorsAreReported) {
  const TemporaryFolder folder;
  const ModelSpec spec = spec_of(Family::qwen2, false);
  write_renamed(folder.path(), spec, [](const std::string& name) { return name; },
                {{{"score.weight", ElementType::u8, {1}}, "x"}});
  EXPECT_EQ(check_result(folder.path(), spec),
            (folder / "model.safetensors").string() +
                ": tensor 'score.weight' is not part of the model and is ignored");
}

TEST(HfTensors, FullDiskLeavesNoCompleteFiles) {
  const ModelSpec spec = spec_of(Family::gpt2, true);
  const ReadTensor<double> read(fill_values);
  int calls = 0;
  for (bool has_failed = true; has_failed; ++calls) {
    const TemporaryFolder folder;
    FailingFileSystem files(calls);
    const HfExport options{.type = ElementType::bf16, .max_shard_size = Bytes(20'000)};
    const Outcome<void> done = write_hf_weights(files, folder.path(), logical_tensors(spec), read, options);
    has_failed = files.has_failed();
    EXPECT_EQ(done.has_value(), !has_failed);
    const bool is_whole = std::filesystem::exists(folder / std::string(kWeightsIndex)) ||
                          std::filesystem::exists(folder / std::string(kWeightsFile));
    if (is_whole) {
      EXPECT_EQ(check_result(folder.path(), spec), "");
    }
  }
  EXPECT_GT(calls, 8);
}

}  // namespace
}  // namespace optimus
