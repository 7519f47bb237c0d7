// Implements store_file.h.
#include "launch/store_file.h"

#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "rundir/private_file.h"

namespace optimus {
namespace {

Path store_path(const Path& run) { return run / "logs" / "store.json"; }

std::string text_of(const RunStoreAddress& store) {
  const StoreAddress& address = store.address;
  const Json json{{"host", address.host},       {"port", address.port},   {"token", address.token},
                  {"is_etcd", address.is_etcd}, {"prefix", store.prefix}, {"may_move", store.may_move}};
  return json.dump() + "\n";
}

}  // namespace

StoreFile::StoreFile(const Path& run, const RunStoreAddress& store_address)
    : path_(store_path(run)), text_(text_of(store_address)) {
  write_private_file(path_, text_);
}

// Removes the file only if it is unchanged, because another process may host the run now and may have
// replaced the file.
StoreFile::~StoreFile() {
  if (is_left_) return;
  if (const Outcome<std::string> text = read_file(path_); text && *text == text_) ::unlink(path_.c_str());
}

bool has_store_file(const Path& run) {
  std::error_code error;
  return std::filesystem::exists(store_path(run), error);
}

void remove_store_file(const Path& run) { ::unlink(store_path(run).c_str()); }

RunStoreAddress read_store_file(const Path& run) {
  const Path path = store_path(run);
  if (!has_store_file(run))
    throw UserError("{}: cannot join, because the run has ended or does not accept new workers (--static)",
                    run.string());
  const Json json = read_json(path);
  const JsonView view(json, path.string());
  return {{view.at("host").text(), static_cast<int>(view.at("port").integer(1, 65535)),
           view.at("token").text(), view.at("is_etcd").boolean()},
          view.at("prefix").text(),
          view.at("may_move").boolean()};
}

}  // namespace optimus
