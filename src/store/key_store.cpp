// See key_store.h.
#include "store/key_store.h"

#include <algorithm>
#include <thread>

#include "base/text.h"
#include "store/socket.h"

namespace optimus {

void pause_before_query(int num_queries) {
  std::this_thread::sleep_for(std::chrono::milliseconds(std::min(50, 1 << std::min(num_queries, 6))));
}

Outcome<std::vector<std::optional<std::string>>> KeyStore::query(const Query& query) {
  for (const auto& [key, value] : query.sets)
    if (const auto is_set = set(key, value); !is_set) return tl::unexpected(is_set.error());
  std::vector<std::optional<std::string>> result;
  for (const std::string& key : query.gets) {
    auto stored_value = find(key);
    if (!stored_value) return tl::unexpected(stored_value.error());
    result.push_back(std::move(*stored_value));
  }
  return result;
}

StoreAddress parse_store(const std::string& text, const std::string& token) {
  const std::string scheme = "etcd://";
  if (!starts_with(text, scheme))
    throw UserError("--store {}: only etcd is supported, for example etcd://host:2379", in_quotes(text));
  StoreAddress store_address;
  std::tie(store_address.host, store_address.port) = parse_host_port(text.substr(scheme.size()), "--store");
  store_address.token = token, store_address.is_etcd = true;
  return store_address;
}

Outcome<std::unique_ptr<KeyStore>> open_store(const StoreAddress& address, const Deadline& deadline) {
  for (int query = 0;; ++query) {
    auto store = address.is_etcd ? open_etcd_store(address, deadline) : open_tcp_store(address, deadline);
    if (store || deadline.has_passed()) return store;
    pause_before_query(query);
  }
}

}  // namespace optimus
