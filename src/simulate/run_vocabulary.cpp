// See run_vocabulary.h.
#include "simulate/run_vocabulary.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "cluster/standard.h"
#include "model/family.h"
#include "model/presets.h"

namespace optimus {
namespace {

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

// A GPU name is mapped by the first row whose words both occur in the lower-case name.
struct GpuRow {
  std::string_view word, second_word;
  const char* type;
};
// clang-format off
constexpr GpuRow kGpus[] = {
  {"gb300", "", "gb300"},          {"gb200", "", "gb200"},          {"b300", "", "b300"},
  {"b200", "", "b200"},            {"gh200", "", "gh200"},          {"h200", "", "h200"},
  {"h800", "", "h800"},            {"h20", "", "h20"},              {"l40s", "", "l40s"},
  {"h100", "hbm2e", "h100-96"},    {"h100", "96gb", "h100-96"},     {"h100", "", "h100"},
  {"a800", "", "a800"},            {"a100", "40gb", "a100-40"},     {"a100", "", "a100-80"},
  {"v100", "16gb", "v100-16"},     {"v100", "", "v100-32"},         {"mi355x", "", "mi355x"},
  {"mi350x", "", "mi350x"},        {"mi325x", "", "mi325x"},        {"mi300x", "", "mi300x"},
  {"4090", "", "rtx4090"},         {"a6000", "", "a6000"},
};

struct NetworkRow {
  const char* name;
  double gbit_per_device;
  int domain;  // devices per fast domain; 0 means all devices of the node
};
// Line rates per device, except for Omni-Path (50 Gb/s). The Omni-Path protocol runs on the CPU without
// direct access to device memory and reaches only about a third of the line rate in collectives.
constexpr NetworkRow kNetworks[] = {
  {"ib-hdr-8x200",   200,  0}, {"ib-hdr-4x200",   100,  0}, {"ib-ndr-8x400",   400,  0},
  {"ib-ndr-4x400",   400,  0}, {"roce-4x100",      50,  0}, {"roce-8x100",     100,  0},
  {"roce-8x200",     200,  0}, {"roce-8x400",     400,  0}, {"efa-8x400",      400,  0},
  {"omnipath-4x100",  17,  0}, {"nvl72-ndr",      400, 72},
};

// A model whose name contains one of these words has the structure of Llama: gated MLP, RMS norm, rotary
// positions, untied embedding.
constexpr std::string_view kLlamaLike[] = {
  "llama", "mistral", "qwen", "intern", "baichuan", "yi-", "gemma", "aquila", "deepseek", "smollm", "olmo",
  "mixtral", "granite", "vicuna", "codellama",
};
// clang-format on

double network_speed(const std::string& name, int per_node) {
  for (const NetworkRow& row : kNetworks)
    if (name == row.name) return row.gbit_per_device;
  // "NAME-4x100": links per node x Gb/s.
  const auto dash = name.rfind('-');
  const auto cross = name.rfind('x');
  if (dash == std::string::npos || cross == std::string::npos || cross < dash) return 0;
  int links = 0, speed = 0;
  const char *text = name.data(), *end = text + name.size();
  std::from_chars(text + dash + 1, text + cross, links);
  std::from_chars(text + cross + 1, end, speed);
  if (links < 1 || speed < 1 || links > 100 || speed > 10'000) return 0;
  return static_cast<double>(links) * speed / per_node;
}

}  // namespace

Cluster cluster_by_gpu_name(const std::string& gpu_name, const std::string& network, int per_node,
                            int num_devices, int rack_group) {
  const std::string name = lower(gpu_name);
  std::string type;
  for (const GpuRow& row : kGpus)
    if (type.empty() && contains(name, row.word) && contains(name, row.second_word)) type = row.type;
  if (type.empty() && find_device_type(name)) type = name;
  if (type.empty()) throw UserError("unknown gpu {}", in_quotes(gpu_name));
  HardwareProfile profile;
  profile.name = type;
  profile.types.push_back(*find_device_type(type));
  NodeGroup group = standard_group(type, 0, num_devices);
  const bool is_rack = group.devices_per_domain > 8;
  group.devices_per_node = per_node;
  if (!is_rack) group.devices_per_domain = group.devices_per_domain == 1 ? 1 : per_node;
  const int unit = rack_group % per_node == 0 && rack_group <= 72 ? rack_group : per_node;
  if (is_rack) group.devices_per_domain = 72 / unit * unit;
  if (const double speed = network_speed(network, per_node); speed > 0) {
    group.network.nics_per_node = per_node;
    group.network.nic.bytes_per_second = speed / 8 * 1e9;
  } else {
    group.network.nics_per_node = std::max(1, std::min(group.network.nics_per_node, per_node));
  }
  profile.groups.push_back(group);
  return Cluster(std::move(profile), "gpu " + in_quotes(gpu_name));
}

std::optional<ModelSpec> model_by_name(const std::string& name) {
  std::string preset_name = name;
  for (char& letter : preset_name)
    if (letter == ' ' || letter == '_') letter = '-';
  if (auto preset = find_preset(preset_name)) return preset;
  for (const std::string& known : preset_names())
    if (starts_with(preset_name, known + "-")) return find_preset(known);
  return std::nullopt;
}

ModelSpec model_without_dimensions(const std::string& name, std::int64_t ffn, std::int64_t hidden) {
  const bool is_llama = std::any_of(std::begin(kLlamaLike), std::end(kLlamaLike),
                                    [&](std::string_view word) { return contains(name, word); });
  const bool is_gpt = contains(name, "gpt") || contains(name, "mpt") || contains(name, "bloom") ||
                      contains(name, "opt") || contains(name, "bert") || contains(name, "nlg");
  const bool is_nemotron = contains(name, "nemotron");
  const bool looks_gated = ffn > 0 && ffn != 4 * hidden;
  if (is_llama || (!is_gpt && !is_nemotron && looks_gated)) {
    ModelSpec spec = blank_spec(Family::llama);
    spec.activation = Activation::silu;
    return spec;
  }
  ModelSpec spec = blank_spec(Family::gpt2);
  if (is_nemotron) {  // rotary positions, squared ReLU, untied embedding
    spec.positions = PositionKind::rope, spec.is_tied = false;
    spec.has_qkv_bias = spec.has_out_bias = spec.has_mlp_bias = false;
  }
  return spec;
}

KnownMoe moe_by_name(const std::string& name) {
  struct Row {
    std::string_view word;
    KnownMoe moe;
  };
  constexpr LatentAttention kLatent{.query_rank = 1536, .kv_rank = 512, .rope_dim = 64, .value_dim = 128};
  static constexpr Row kMixtures[] = {
      {"gpt oss", {.head_dim = 64}},
      {"qwen3", {.head_dim = 128}},
      {"deepseekv3 cut", {.head_dim = 192, .shared_ffn = 2048, .first_layer = 1, .latent = kLatent}},
      {"deepseekv3", {.head_dim = 192, .shared_ffn = 2048, .first_layer = 3, .latent = kLatent}},
      {"deepseekv2", {.head_dim = 192, .shared_ffn = 3072, .first_layer = 1, .latent = kLatent}},
      {"kimi", {.head_dim = 192, .shared_ffn = 2048, .first_layer = 1, .latent = kLatent}},
  };
  for (const Row& row : kMixtures)
    if (contains(name, row.word)) return row.moe;
  return {};
}

bool pads_vocabulary(const Software& software) { return starts_with(software.name, "megatron"); }

NumberFormats number_formats_of(const std::string& description, const Software& software) {
  const std::string text = lower(description);
  NumberFormats numbers;
  const bool is_blocked = contains(text, "mx") || contains(text, "rowwise") || contains(text, "granularity");
  if (contains(text, "fp4"))
    numbers = {Precision::fp8, {NumberFormat::fp4, true}, 0};
  else if (contains(text, "fp8"))
    numbers = {Precision::fp8, {NumberFormat::fp8, is_blocked}, 0};
  else if (contains(text, "fp32") && !contains(text, "16"))
    numbers = {Precision::fp32, {NumberFormat::tf32}, 0};
  else if (contains(text, "bf16") || (text.empty() && !starts_with(software.name, "megatron-2021")))
    numbers = {Precision::bf16, {NumberFormat::bf16}, 0};
  else
    numbers = {Precision::fp16, {NumberFormat::fp16}, 0};
  if (contains(text, "fp32 grad")) numbers.gradient_bytes = 4;
  return numbers;
}

Sharding sharding_of(const std::string& description, const Software& software) {
  const std::string text = lower(description);
  if (text.empty() || text == "ddp") return {software.default_zero, 0, true};
  if (contains(text, "none") || contains(text, "zero0")) return {0, 0, false};
  Sharding sharding;
  if (contains(text, "zero3") || contains(text, "fsdp")) sharding.zero = 3;
  if (contains(text, "zero2") || contains(text, "shard_grad_op")) sharding.zero = 2;
  if (contains(text, "zero1") || contains(text, "distributed optimizer")) sharding.zero = 1;
  if (const auto at = text.find("within "); at != std::string::npos)
    std::from_chars(text.data() + at + 7, text.data() + text.size(), sharding.group);
  sharding.group = std::clamp(sharding.group, 0, 1'000'000);
  return sharding;
}

int default_chunks(const Software& software, std::int64_t layers, std::int64_t pp) {
  if (!software.default_interleaving || layers % pp != 0) return 1;
  int chunks = 1;
  for (int c = 2; c <= 10; ++c)
    if (layers / pp % c == 0) chunks = c;
  return chunks;
}

RecomputeMode default_recompute(const Software& software, std::int64_t sequence_length) {
  constexpr std::int64_t kLong = 65536;
  if (software.name == "megatron-core-2024" && sequence_length >= kLong) return RecomputeMode::full;
  return software.default_recompute;
}

const Software& guess_software(std::string_view name) {
  const std::string text = lower(name);
  if (contains(text, "fsdp") && contains(text, "compile")) return *find_software("fsdp2-compile");
  if (contains(text, "fsdp") || contains(text, "deepspeed")) return *find_software("fsdp1-flash");
  return *find_software("megatron-core-2025");
}

}  // namespace optimus
