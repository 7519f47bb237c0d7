// Implements shared_folder.h.
#include "rundir/shared_folder.h"

#include "base/deadline.h"
#include "base/error.h"
#include "rundir/worker_protocol.h"
#include "store/key_store.h"

namespace optimus {
namespace {

constexpr Seconds kMarkTimeout{15};  // on network file systems, new files become visible with a delay

Path mark_path(const Path& run, const std::string& name) { return run / "logs" / ("mark-" + name); }

}  // namespace

FolderMark::FolderMark(const Path& run, const std::string& name) : path_(mark_path(run, name)) {
  RealFileSystem files;
  value_or_throw(files.create_folders(path_.parent_path()));
  value_or_throw(write_atomically(files, path_, name + "\n"));
}

FolderMark::~FolderMark() {
  std::error_code error;
  std::filesystem::remove(path_, error);
}

void expect_same_folder(const Path& run, const std::string& mark, const std::string& host_of_first,
                        const std::function<void()>& check_interrupted) {
  const Deadline deadline = Deadline::after(kMarkTimeout, "the run's folder");
  std::error_code error;
  for (int attempt = 0; !std::filesystem::exists(mark_path(run, mark), error); ++attempt) {
    if (deadline.has_passed())
      throw UserError(
          "{} on {} is not the folder that rank 0 uses on {}; --run must be a folder that all hosts share",
          run.string(), host_name(), host_of_first);
    check_interrupted();
    pause_before_query(attempt);
  }
}

}  // namespace optimus
