// Imported and exported weights have identical bits for every type and family.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/random.h"
#include "base/temporary_folder.h"
#include "checkpoint/hf_tensors.h"
#include "model/random_spec.h"

namespace optimus {
namespace {

// Random bits except NaNs, whose payload a conversion may change: infinities, subnormal numbers and both
// zeros occur.
std::vector<std::byte> any_numbers(ElementType type, std::int64_t count, RandomKey key) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * width(type)));
  std::vector<double> value(1);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i * width(type));
    std::uint64_t bits = random_bits(key, static_cast<std::uint64_t>(i));
    const std::span<std::byte> place = std::span(bytes).subspan(at, static_cast<std::size_t>(width(type)));
    std::memcpy(place.data(), &bits, place.size());
    decode(type, place, std::span<double>(value));
    if (value[0] != value[0]) std::memset(place.data(), 0, place.size());
  }
  return bytes;
}

// Writes weights as another library would: one file, tensors in any order.
std::map<std::string, std::vector<std::byte>> write_random(const Path& path, const ModelSpec& spec,
                                                           ElementType type, std::uint64_t seed) {
  std::vector<TensorHeader> headers;
  std::map<std::string, std::vector<std::byte>> contents;
  std::vector<HfTensor> all = hf_tensors(logical_tensors(spec));
  std::reverse(all.begin(), all.end());
  for (const HfTensor& tensor : all) {
    const auto& dims = tensor.shape.dims;
    headers.push_back({tensor.name, type, {dims.begin(), dims.begin() + tensor.shape.num_dims}});
    contents[tensor.name] =
        any_numbers(type, tensor.shape.num_elements(), RandomKey(seed).derive(tensor.name));
  }
  RealFileSystem files;
  SafetensorsWriter writer = value_or_throw(SafetensorsWriter::create(files, path, headers));
  for (const TensorHeader& header : headers) value_or_throw(writer.write(contents.at(header.name)));
  value_or_throw(writer.commit());
  return contents;
}

template <typename Real>
void expect_round_trip(const ModelSpec& spec, ElementType type, std::uint64_t seed, Bytes shard) {
  const TemporaryFolder from, to;
  const auto contents = write_random(from / std::string(kWeightsFile), spec, type, seed);
  const SafetensorsFolder source = SafetensorsFolder::open(from.path());
  RealFileSystem files;
  const ReadTensor<Real> read = [&](const LogicalTensor& tensor, std::span<Real> out) {
    read_logical(source, tensor, out);
  };
  value_or_throw(write_hf_weights(files, to.path(), logical_tensors(spec), read, {type, shard}));
  const SafetensorsFolder result = SafetensorsFolder::open(to.path());
  std::size_t num_tensors = 0;
  for (const SafetensorsFile& file : result.files()) num_tensors += file.tensors().size();
  EXPECT_EQ(num_tensors, contents.size());
  for (const auto& [name, bytes] : contents) {
    const auto found = result.find(name);
    ASSERT_TRUE(found) << name;
    EXPECT_TRUE(found.tensor->type == type && found.tensor->bytes.size() == bytes.size() &&
                std::memcmp(found.tensor->bytes.data(), bytes.data(), bytes.size()) == 0)
        << name << " of seed " << seed << " as " << text(type);
  }
}

TEST(HfRoundTrip, SameBitsForEveryFamilyAndType) {
  for (std::uint64_t seed = 0; seed < 14; ++seed) {  // each family twice
    const ModelSpec spec = random_spec(seed);
    const Bytes shard(seed % 2 == 0 ? 1 << 30 : 20'000);
    for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::f16})
      expect_round_trip<float>(spec, type, seed, shard);
    expect_round_trip<double>(spec, ElementType::f64, seed, shard);
    expect_round_trip<double>(spec, ElementType::bf16, seed, shard);
  }
}

}  // namespace
}  // namespace optimus
