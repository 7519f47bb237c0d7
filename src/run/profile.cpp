// Implements profile.h.
#include "run/profile.h"

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "rundir/worker_protocol.h"
#include "simulate/instruction_name.h"
#include "switching/memory.h"

namespace optimus {
namespace {

// The first steps are skipped, because they select kernels, open connections and touch memory for the first
// time.
constexpr std::int64_t kSkippedSteps = 3, kProfiledSteps = 3;

Path rank_file(const Path& run, int rank) { return run / "profile" / fmt::format("rank-{}.json", rank); }

StageMemory memory_of(const Engine& engine, const Parameters& parameters) {
  StageMemory memory;
  const auto add = [](Bytes& to, const at::Tensor& tensor) {
    if (tensor.defined()) to = to + Bytes(static_cast<std::int64_t>(tensor.nbytes()));
  };
  for (int b = 0; b < parameters.num_blocks(); ++b) {
    const BlockState& state = parameters.block(b);
    add(memory.weights, state.weights), add(memory.gradients, state.gradients);
    add(memory.optimizer, state.first_moment), add(memory.optimizer, state.second_moment);
    if (!state.masters.is_same(state.weights)) add(memory.optimizer, state.masters);
  }
  if (parameters.copies() != nullptr) memory.optimizer = memory.optimizer + parameters.copies()->bytes();
  memory.activations = engine.bytes();
  memory.total = parameters.bytes() + engine.bytes();
  return memory;
}

// Returns VmHWM from /proc/self/status.
Bytes peak_resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (starts_with(line, "VmHWM:")) return Bytes(std::atoll(line.c_str() + 6) * 1024);
  return Bytes(0);
}

}  // namespace

Profiler::Profiler(ProfileOptions options, const Plan& plan, const ModelSpec& model, Engine& engine,
                   const Parameters& parameters, Agreement ranks, EventSink& events, StatusLine& line)
    : options_(std::move(options)),
      plan_(plan),
      model_(model),
      engine_(engine),
      parameters_(parameters),
      ranks_(std::move(ranks)),
      events_(events),
      line_(line),
      first_step_(options_.completed_steps + 1 +
                  std::clamp<std::int64_t>(options_.steps - options_.completed_steps - kProfiledSteps, 0,
                                           kSkippedSteps)),
      last_step_(std::min(first_step_ + kProfiledSteps - 1, options_.steps)),
      log_(engine.device()) {}

void Profiler::before_step(std::int64_t step) {
  if (step < first_step_ || step > last_step_) return;
  if (step == first_step_) begin();
  engine_.instruction_log = &log_;
  profile_.steps.push_back({step, log_.elapsed(), 0});
}

// All ranks leave the same collective at about the same moment, so their measurements start together.
void Profiler::begin() {
  const PlanLocation& location = engine_.program().location;
  profile_.rank = ranks_.rank_index(), profile_.host = host_name(), profile_.device = engine_.device().str();
  profile_.pipeline = location.pipeline, profile_.stage = location.stage;
  ranks_.any(false, "start of the profile");
  log_.begin_times();
}

void Profiler::after_step(std::int64_t step) {
  if (step < first_step_ || step > last_step_) return;
  engine_.instruction_log = nullptr;  // work between two steps is not logged
  profile_.steps.back().end = log_.elapsed();
  for (const InstructionTime& time : log_.take()) {
    const Instruction& at = engine_.program().instructions[static_cast<std::size_t>(time.instruction)];
    if (at.op == Op::load_batch) continue;  // done before the step
    profile_.instructions.push_back({profile_.pipeline, profile_.stage, at.lane,
                                     instruction_name(at, model_, at.microbatch),
                                     instruction_kind(at, model_), time.start, time.end});
  }
  if (step == last_step_) finish();
}

void Profiler::finish() {
  profile_.memory = memory_of(engine_, parameters_), profile_.resident = peak_resident_memory();
  RealFileSystem files;
  Outcome<void> written = files.create_folders(options_.run / "profile");
  if (written)
    written =
        write_atomically(files, rank_file(options_.run, ranks_.rank_index()), profile_json(profile_).dump());
  if (!written) events_.report(Warning{fmt::format("--profile: {}", written.error().why)});
  if (ranks_.any(!written, "profiles written") || ranks_.rank_index() != 0) return;
  try {
    merge_ranks();
  } catch (const ReportedError& error) {
    events_.report(Warning{fmt::format("--profile: {}", error.what())});
  }
}

void Profiler::merge_ranks() {
  std::vector<RankProfile> ranks;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const Path path = rank_file(options_.run, rank);
    ranks.push_back(parse_rank_profile(read_json(path), path.string()));
  }
  const at::Device device = engine_.device();
  const std::optional<ExpectedStep> expected =
      expected_step(type_name(device), device.is_cuda(), plan_, model_, events_);
  RealFileSystem files;
  value_or_throw(
      write_atomically(files, options_.file, profile_trace(ranks, comparison_json(ranks, plan_, expected))));
  for (const std::string& row : split(comparison_text(ranks, plan_, expected), '\n'))
    if (!row.empty()) line_.print(row);
  line_.print(fmt::format("wrote a trace of steps {} to {} on all ranks to {}; open it in ui.perfetto.dev",
                          first_step_, last_step_, options_.file.string()));
}

}  // namespace optimus
