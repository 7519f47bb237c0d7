// The first checkpoint level of a run that a launcher started on one or more hosts: each rank's boxes are
// stored in its host's memory, and a copy of them in the memory of the next host. The loss of one host, or of
// its processes, therefore loses nothing; files in the run's folder are the second level (checkpoint/save.h).
// Pure; neighbor_copies.h sends the copies.
//
//   host 0                         host 1                         host 2
//   own: ranks 0 1, copies: 4 5    own: ranks 2 3, copies: 0 1    own: ranks 4 5, copies: 2 3
//
// The ranks that the plan uses store state; they are numbered as writers, and a change of plan changes them.
// RUN/memory.json names the folder, which is the same on every host, and the host of each rank that the run
// began with, followed by those that joined (index: the worker id, membership_change.h):
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
  std::vector<int> ranks{};  // [writer]; empty: writers are the run's ranks

  // For a membership: the worker ids of its ranks.
  HostMemory for_workers(const std::vector<int>& worker_ids) const;
  // For the ranks of a plan, in their order: they are the writers. Other ranks store nothing.
  HostMemory for_ranks(const std::vector<int>& ranks) const;
  int rank_of(int writer) const {
    return ranks.empty() ? writer : ranks.at(static_cast<std::size_t>(writer));
  }
  int num_writers() const { return static_cast<int>(host_of.size()); }
  int num_hosts() const;
  // The first writer of a host does the work that is done once per host.
  bool is_first_of_host(int writer) const;
  // The folder of a step on the writer's host.
  Path step_folder(int writer, std::int64_t step) const;
  // The writers whose boxes this writer copies, and the writer that copies this one's; nullopt on a single
  // host. The next host is the next one that has a writer.
  std::vector<int> copied_by(int writer) const;
  std::optional<int> copy_holder_of(int writer) const;
  // Bytes of the whole training's state that a host stores, own boxes and copies.
  Bytes bytes_on_host(int host, Bytes state) const;
};

// All ranks that the plan uses, in their order.
std::vector<int> storing_ranks(const Plan& plan);

// On rank 0, before the others know the run. The folder has a random name inside `base`.
HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of);
// After workers joined: the hosts of all worker ids. No effect if the run has no host memory.
void write_hosts(FileSystem& files, const Path& run, const std::vector<int>& host_of);
// nullopt if the run has no host memory, or is a copy of a run that has.
std::optional<HostMemory> find_host_memory(const Path& run);
// Creates the folder with access for its owner only. Throws UserError if that fails or the folder belongs to
// another user.
void make_memory_folder(const HostMemory& memory);
// On each initial rank: creates the folder and removes what earlier attempts left there. kept: bytes of one
// step on this host. Throws UserError also if there is not enough space for two steps.
void open_host_memory(const HostMemory& memory, int rank, Bytes checkpoint_bytes);
// The first writer of a host writes a step's small files and its number of writers; older steps are then
// removed.
Outcome<void> write_step_files(FileSystem& files, const Path& step_folder,
                               const std::vector<SmallFile>& small_files, int num_writers);
void remove_steps_before(const Path& step_folder);
// Removes parts that were copied to the run's folder and not used.
void remove_exported(const Path& run);
// Removes all steps on this host: the run has rolled back to an earlier step.
void remove_steps(const HostMemory& memory);
// Removes this host's folder of the run; rank 0 also removes memory.json.
void remove_host_memory(const HostMemory& memory);
void remove_host_memory(const Path& run, bool with_list);

// On any process of each host, before the run continues: copies steps of this host that are newer than the
// checkpoint files. A part that cannot be copied is treated as absent.
void export_host_memory(const Path& run);
// On one process, after all hosts have copied theirs: the newest complete step becomes a checkpoint in the
// run's folder and is returned; nullopt if there is none. The copied parts are removed.
std::optional<std::int64_t> commit_host_memory(FileSystem& files, const Path& run);

}  // namespace optimus
