// The first checkpoint level of a run that a launcher started on one or more hosts: each rank's boxes are
// stored in its host's memory, and a copy of them in the memory of the next host. If one host or some of its
// processes are lost, no state is lost. Files in the run's folder are the second level (checkpoint/save.h).
// Pure; neighbor_copies.h sends the copies.
//
//   host 0                         host 1                         host 2
//   own: ranks 0 1, copies: 4 5    own: ranks 2 3, copies: 0 1    own: ranks 4 5, copies: 2 3
//
// Only the ranks that the plan uses store state; they are numbered as writers, and a change of plan renumbers
// them. RUN/memory.json names the folder, which is the same on every host, and lists the host of each worker
// of the run (membership_change.h), first the initial workers and then those that joined:
// FOLDER/host-0/step-41.tmp-part/rank-00000.safetensors … A resume uses the run's folder, which all hosts
// share: each host copies its part to RUN/memory (export_host_memory), and once all boxes of a step are there
// they become an ordinary checkpoint (commit_host_memory).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/units.h"
#include "checkpoint/small_file.h"
#include "plan/plan.h"

namespace optimus {

struct HostMemory {
  Path folder;
  std::vector<int> host_of;  // [writer]
  std::vector<int> ranks{};  // [writer]: rank; empty if writer i is rank i

  // Returns this for the ranks of a membership, given by their worker ids.
  HostMemory for_workers(const std::vector<int>& worker_ids) const;
  // Returns this with `ranks`, the ranks of a plan in order, as the writers. Other ranks store nothing.
  HostMemory for_ranks(const std::vector<int>& ranks) const;
  int rank_of(int writer) const {
    return ranks.empty() ? writer : ranks.at(static_cast<std::size_t>(writer));
  }
  int num_writers() const { return static_cast<int>(host_of.size()); }
  int num_hosts() const;
  // Whether this is the first writer of its host, which does the work that is done once per host.
  bool is_first_of_host(int writer) const;
  // The folder of a step on the writer's host.
  Path step_folder(int writer, std::int64_t step) const;
  // copied_by() returns the writers whose boxes this writer copies; copy_holder_of() returns the writer
  // that copies this writer's boxes, nullopt on a single host. The copies are on the next host that has a
  // writer.
  std::vector<int> copied_by(int writer) const;
  std::optional<int> copy_holder_of(int writer) const;
  // The bytes that a host stores, its own boxes and copies, if the state of the whole training has `state`
  // bytes.
  Bytes bytes_on_host(int host, Bytes state) const;
};

// All ranks that the plan uses, in their order.
std::vector<int> storing_ranks(const Plan& plan);

// Called on rank 0, before the other ranks know the run. The folder has a random name inside `base`.
HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of);
// Called after workers have joined, with the hosts of all worker ids. No effect if the run has no host
// memory.
void write_hosts(FileSystem& files, const Path& run, const std::vector<int>& host_of);
// nullopt if the run has no host memory, or is a copy of a run that has it.
std::optional<HostMemory> find_host_memory(const Path& run);
// Creates the folder with access for its owner only. Throws ReportedError if that fails or the folder
// belongs to another user.
void make_memory_folder(const HostMemory& memory);
// Called on each initial rank: creates the folder and removes files that earlier attempts left there.
// `checkpoint_bytes` is the size of one step on this host. Throws ReportedError also if there is not enough
// space for two steps.
void open_host_memory(const HostMemory& memory, int rank, Bytes checkpoint_bytes);
// Called by the first writer of a host: writes a step's small files and its number of writers. Older steps
// can then be removed (remove_steps_before()).
Outcome<void> write_step_files(FileSystem& files, const Path& step_folder,
                               const std::vector<SmallFile>& small_files, int num_writers);
void remove_steps_before(const Path& step_folder);
// Removes parts that were copied to the run's folder and never used.
void remove_exported(const Path& run);
// Removes all steps on this host, because the run has rolled back to an earlier step.
void remove_steps(const HostMemory& memory);
// Removes this host's folder of the run; rank 0 also removes memory.json.
void remove_host_memory(const HostMemory& memory);
void remove_host_memory(const Path& run, bool with_list);

// Called in one process of each host before the run continues: copies this host's steps that are newer than
// the checkpoint files to the run's folder. A part that cannot be copied is treated as absent.
void export_host_memory(const Path& run);
// Called in one process after all hosts have copied their steps: the newest complete step becomes a
// checkpoint in the run's folder and is returned; nullopt if there is none. The copied parts are removed.
std::optional<std::int64_t> commit_host_memory(FileSystem& files, const Path& run);

}  // namespace optimus
