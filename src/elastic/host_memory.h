// The first checkpoint level of a run that a launcher started on one or more hosts. Each rank's boxes are
// stored in the memory of its host, with a copy in the memory of the next host. So no state is lost if a host
// or some of its processes are lost. Files in the run's folder are the second level (checkpoint/save.h).
// Pure; neighbor_copies.h sends the copies.
//
//   host 0                         host 1                         host 2
//   own: ranks 0 1, copies: 4 5    own: ranks 2 3, copies: 0 1    own: ranks 4 5, copies: 2 3
//
// Only the ranks that the plan uses store state. They are numbered as writers, and each plan change renumbers
// them. RUN/memory.json contains the path of the folder, which is the same on every host, and the host of
// each worker (membership_change.h), in the order of worker ids. An example of a file is
// FOLDER/host-0/step-41.tmp-part/rank-00000.safetensors. A resume uses the run's folder, which all hosts
// share. Each host copies its part to RUN/memory (export_host_memory). When all boxes of a step are there,
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

  // Returns this object for the ranks of a membership, which are given by their worker ids.
  HostMemory for_workers(const std::vector<int>& worker_ids) const;
  // Returns this object with the ranks of a plan, in order, as the writers. Other ranks do not store state.
  HostMemory for_ranks(const std::vector<int>& ranks) const;
  int rank_of(int writer) const {
    return ranks.empty() ? writer : ranks.at(static_cast<std::size_t>(writer));
  }
  int num_writers() const { return static_cast<int>(host_of.size()); }
  int num_hosts() const;
  // Whether this is the first writer on its host. The first writer does the work that is needed once per
  // host.
  bool is_first_of_host(int writer) const;
  // The folder for a step on the writer's host.
  Path step_folder(int writer, std::int64_t step) const;
  // copied_by() returns the writers whose boxes this writer copies. copy_holder_of() returns the writer that
  // copies this writer's boxes, or nullopt if there is only one host. Copies are stored on the next host that
  // has a writer.
  std::vector<int> copied_by(int writer) const;
  std::optional<int> copy_holder_of(int writer) const;
  // The number of bytes that a host stores for its boxes and for copies, if the complete training state has
  // `state` bytes.
  Bytes bytes_on_host(int host, Bytes state) const;
};

// All ranks that the plan uses, in ascending order.
std::vector<int> storing_ranks(const Plan& plan);

// Called on rank 0, before the other ranks know the run. The folder is created in `base` with a random name.
HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of);
// Called after workers have joined, with the host of each worker id. Has no effect if the run does not use
// host memory.
void write_hosts(FileSystem& files, const Path& run, const std::vector<int>& host_of);
// Returns nullopt if the run does not use host memory, or if it is a copy of a run that does.
std::optional<HostMemory> find_host_memory(const Path& run);
// Creates a folder that only the owner can access. Throws ReportedError if this fails or the folder belongs
// to another user.
void make_memory_folder(const HostMemory& memory);
// Called on each initial rank. Creates the folder and removes files that earlier attempts left there.
// `checkpoint_bytes` is the size of a checkpoint on this host. Also throws ReportedError if there is not
// enough space for two checkpoints.
void open_host_memory(const HostMemory& memory, int rank, Bytes checkpoint_bytes);
// Called by the first writer on a host. Writes the small files of a step and its number of writers. After
// that, older steps can be removed (remove_steps_before()).
Outcome<void> write_step_files(FileSystem& files, const Path& step_folder,
                               const std::vector<SmallFile>& small_files, int num_writers);
void remove_steps_before(const Path& step_folder);
// Removes parts that were copied to the run's folder but not used.
void remove_exported(const Path& run);
// Removes all steps on this host. Called when the run has rolled back to an earlier step.
void remove_steps(const HostMemory& memory);
// Removes this host's folder of the run; rank 0 also removes memory.json.
void remove_host_memory(const HostMemory& memory);
void remove_host_memory(const Path& run, bool with_list);

// Called in one process on each host before the run continues. Copies to the run folder the in-memory
// checkpoints on this host that are newer than the checkpoint files. A part that cannot be copied is treated
// as missing.
void export_host_memory(const Path& run);
// Called in one process after all hosts have copied their steps. Turns the newest complete step into a
// checkpoint in the run's folder and returns the step, or nullopt if no step is complete. The copied parts
// are removed.
std::optional<std::int64_t> commit_host_memory(FileSystem& files, const Path& run);

}  // namespace optimus
