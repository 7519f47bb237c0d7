// The first level of checkpoints of a run that a launcher has started on one or more hosts: each rank's boxes lie in its own host's
// memory, and a copy of them in the memory of the next host. So whatever one host loses, its processes or itself, the others have; files
// in the run's folder are the second level (checkpoint/save.h). Pure; who sends what to whom: neighbour_copies.h.
//
//   host 0                         host 1                         host 2
//   own: ranks 0 1, copies: 4 5    own: ranks 2 3, copies: 0 1    own: ranks 4 5, copies: 2 3
//
// Who stores are the ranks that the plan uses. They are numbered among each other: writers. A run that changes its plan has others then.
// RUN/memory.json names the folder, the same on every host, and the host of each rank that the run began with, then of those who came
// (a process's place there is its seat, regroup.h):  FOLDER/host-0/step-41.tmp-part/rank-00000.safetensors …
// A resume takes it through the run's folder, which all share: each host brings what it has to RUN/memory (bring_host_memory),
// and when all boxes of a step are there they become a checkpoint like any other (take_host_memory).
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
  std::vector<int> ranks{};  // [writer]; none listed: writers are the run's ranks

  // Of a membership: the seats of its ranks.
  HostMemory of_seats(const std::vector<int>& seats) const;
  // A plan's ranks, in their order: they are the writers. Others have nothing to store.
  HostMemory of_ranks(const std::vector<int>& ranks) const;
  int rank_of(int writer) const {
    return ranks.empty() ? writer : ranks.at(static_cast<std::size_t>(writer));
  }
  int num_writers() const { return static_cast<int>(host_of.size()); }
  int num_hosts() const;
  // The first of a host's writers does what is to be done once there.
  bool is_first_of_host(int writer) const;
  // Where the writer's host keeps a step.
  Path step_folder(int writer, std::int64_t step) const;
  // Whose boxes this writer keeps a copy of; and who keeps one of its own, nobody where there is one host. The next host is the next
  // that has a writer.
  std::vector<int> copied_by(int writer) const;
  std::optional<int> keeper_of(int writer) const;
  // What a host keeps of the state of the whole training, its own and copies.
  Bytes kept_on(int host, Bytes state) const;
};

// Of a plan: all that it uses, in their order.
std::vector<int> storing_ranks(const Plan& plan);

// Rank 0, before the others know of the run. The folder is one of a random name in `base`.
HostMemory announce_host_memory(FileSystem& files, const Path& run, const Path& base,
                                std::vector<int> host_of);
// Others have come: the hosts of all seats. Nothing where the run has no such memory.
void write_hosts(FileSystem& files, const Path& run, const std::vector<int>& host_of);
// Nothing when the run has none, or is a copy of the one that has.
std::optional<HostMemory> find_host_memory(const Path& run);
// Makes the folder, for its owner alone. Throws UserError when it cannot, or the folder is somebody else's.
void make_memory_folder(const HostMemory& memory);
// On each rank that the run begins with: makes the folder, and removes what earlier attempts left there. kept: by this host, of a step. Throws
// UserError also when there is not enough room for two steps.
void open_host_memory(const HostMemory& memory, int rank, Bytes kept);
// Small files of a step, and how many write it, by the first writer of a host; and steps before it go.
Outcome<void> write_step_files(FileSystem& files, const Path& step_folder, const std::vector<SmallFile>& all,
                               int num_writers);
void remove_steps_before(const Path& step_folder);
// What was brought to the run's folder, and not taken.
void remove_brought(const Path& run);
// All steps that this host has: the run has gone back behind them.
void remove_steps(const HostMemory& memory);
// What this host has of the run. With memory.json: by rank 0.
void remove_host_memory(const HostMemory& memory);
void remove_host_memory(const Path& run, bool with_list);

// On any process of each host, before the run goes on: copies what this host has and files have not. That something cannot be copied only
// means that it is not there.
void bring_host_memory(const Path& run);
// On one process, when all hosts have brought theirs: the newest step that is whole becomes a checkpoint in the run's folder, and is
// returned. Nothing when there is none. What was brought is removed.
std::optional<std::int64_t> take_host_memory(FileSystem& files, const Path& run);

}  // namespace optimus
