// The options of a training, in one struct that is also declared as flags and as keys of the settings file.
// `resolve` (settings/settings.h) sets the values that are not given and records the origin of each value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "data/samples.h"
#include "model/options.h"
#include "reshard/plan_change.h"
#include "schedule/sample_assignment.h"
#include "search/demand.h"

namespace optimus {

enum class LearningRateShape { cosine, linear, wsd, constant };

enum class ExportFormat { none, hf };

enum class Redundancy { keep, automatic };

struct TrainOptions {
  ModelOptions model;
  bool from_scratch = false;      // ignore the weights in the model's folder and start from random ones
  std::vector<std::string> data;  // one name, or weight name weight name …
  std::string tokenizer;
  Path run;

  std::optional<std::int64_t> steps, batch, microbatch, sequence_length;
  std::string batch_ramp, sequence_ramp;  // plan/phase.h defines the syntax; constant if empty
  std::optional<double> learning_rate;
  std::optional<std::int64_t> warmup;
  LearningRateShape shape = LearningRateShape::cosine;
  double min_learning_rate_fraction = 0.1;  // final rate as a fraction of the highest
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1;
  std::int64_t seed = 1;
  std::string precision, recompute = "none";
  // Whether the user specified `recompute`, so that every plan must use it. Set by `resolve`.
  bool is_recompute_explicit = false;
  std::optional<std::int64_t> recompute_layers;
  std::optional<double> dropout;
  SampleOptions samples;

  // If empty, `optimus train` uses all GPUs, or one worker per CPU core. The library, whose ranks are
  // threads, uses one device.
  std::optional<std::int64_t> devices;
  std::string device;  // cpu, cuda, cuda:N; if empty, cuda if a GPU is available, else cpu
  std::int64_t threads = 0;
  Seconds timeout{300};        // after which an unresponsive worker is considered failed
  Seconds start_timeout{600};  // for all ranks of a launcher to join
  std::string notice;          // source of the preemption notice (preemption_notice.h); empty if none
  std::string store;           // rendezvous store, etcd://host:port; if empty, the run hosts a store
  Path token_file;             // file with the run's token, for runs over several hosts
  Path plan;
  std::string switch_at;                            // STEP:PLAN,…: the plans to switch to (switch_script.h)
  SampleOrder sample_order = SampleOrder::by_cost;  // how a step's samples are assigned to replicas
  PrecopyMode precopy = PrecopyMode::never;         // whether state is sent before the pause of a plan change
  Constraints layout;                               // constraints on the chosen plan
  Failures failures;                                // failure rates that the planner assumes
  bool is_static = false;
  // Whether redundant copies of the state are always kept (`keep`), or the policy may add or drop them
  // depending on the failure rate (`automatic`).
  Redundancy redundancy = Redundancy::keep;
  std::string history = "none";  // history of past runs (run_history.h): a file, "here" or "none"
  // The policy that decides when to change the plan (policy/decide.h). If empty, "rule" is used if
  // measurements are reliable.
  std::string policy;
  Path learned;     // network of the policy `learned`; if empty, the built-in one
  Path conditions;  // scripted machine conditions (adapt/condition_timeline.h) for the policy `oracle`

  Path resume;                     // a run's folder
  std::string save_every = "30m";  // a number of steps, or a duration
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t memory_every = 0;  // steps between checkpoints in host memory (memory_level.h); 0 if none
  Path memory_folder = "/dev/shm";

  Path profile;  // file for the trace of a few steps; empty if none

  std::int64_t eval_every = 0;
  double validation = 0.05;  // fraction of the data
  std::int64_t sample_tokens = 250;
  // The format in which the model is written to RUN/export at the end.
  ExportFormat export_format = ExportFormat::none;
};
void declare(OptionTable& table, TrainOptions& options);
// Whether any constraint on the plan is given.
bool has_layout(const Constraints& constraints);

}  // namespace optimus
