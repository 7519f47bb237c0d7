// What a user can say about a training: one struct, declared once as flags and settings-file keys. Values that are not given
// are filled in by resolve (settings/settings.h), which says where each came from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "data/samples.h"
#include "model/options.h"
#include "reshard/plan_change.h"
#include "schedule/deal.h"
#include "search/demand.h"

namespace optimus {

enum class LearningRateShape { cosine, linear, wsd, constant };

enum class ExportFormat { none, hf };

enum class Redundancy { keep, automatic };

struct TrainOptions {
  ModelOptions model;
  bool from_scratch = false;      // the model's folder may have weights: start from random ones
  std::vector<std::string> data;  // one name, or weight name weight name …
  std::string tokenizer;
  Path run;

  std::optional<std::int64_t> steps, batch, microbatch, sequence_length;
  std::string batch_ramp, sequence_ramp;  // plan/phase.h has the words; empty: as they are from the begin
  std::optional<double> learning_rate;
  std::optional<std::int64_t> warmup;
  LearningRateShape shape = LearningRateShape::cosine;
  double least_learning_rate = 0.1;  // of the highest, at the end
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1;
  std::int64_t seed = 1;
  std::string precision, recompute = "none";
  bool is_recompute_given = false;  // by somebody: no plan has another; set when settings are resolved
  std::optional<std::int64_t> recompute_layers;
  std::optional<double> dropout;
  SampleOptions samples;

  // None: of the command all GPUs, or as many workers as there are cores; in a program, whose ranks are threads, one.
  std::optional<std::int64_t> devices;
  std::string device;  // cpu, cuda, cuda:N; empty: CUDA where there is one
  std::int64_t threads = 0;
  Seconds patience{300};        // for workers that do not answer
  Seconds start_patience{600};  // for ranks of a launcher that have not come yet
  std::string notice;           // where a machine says that it will be taken (notice.h); empty: nowhere
  std::string store;            // where workers meet: etcd://host:port; empty: a store of our own
  Path token_file;              // with the run's token, of runs over several hosts
  Path plan;
  std::string switch_at;                 // STEP:PLAN,…: plans that the run goes on with (switch_script.h)
  Dealing dealing = Dealing::by_cost;    // of a step's samples among replicas
  WhenEarly precopy = WhenEarly::never;  // whether state is sent before the pause of a change of plan
  Constraints layout;                    // of the plan that is chosen
  Failures failures;                     // what it reckons with
  bool is_static = false;
  // Whether state that is held twice stays so; else the policy may give that up, or take it up, by how often devices are lost.
  Redundancy redundancy = Redundancy::keep;
  std::string history = "none";  // of past runs (run_history.h): a file, here, none
  std::string
      policy;     // that decides about changes of plan (adapt/decide.h); empty: rule, where it can be trusted
  Path learned;   // the network of the policy learned; none: the shipped one
  Path foretold;  // what will happen to the machines (adapt/time_line.h): for the policy oracle

  Path resume;                     // a run
  std::string save_every = "30m";  // steps, or a duration
  std::int64_t keep_last = 2, keep_every = 0;
  std::int64_t memory_every = 0;  // steps between checkpoints in the host's memory (memory_level.h); 0: none
  Path memory_folder = "/dev/shm";

  Path profile;  // where instructions of a few steps are shown in time; empty: nowhere

  std::int64_t eval_every = 0;
  double validation = 0.05;  // fraction of the data
  std::int64_t sample_tokens = 250;
  ExportFormat export_format = ExportFormat::none;  // what is written into the run's folder export at the end
};
void declare(OptionTable& table, TrainOptions& options);
// Whether anything was said of the plan that is chosen.
bool has_layout(const Constraints& constraints);

}  // namespace optimus
