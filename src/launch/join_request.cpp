// Implements join_request.h.
#include "launch/join_request.h"

#include "base/text.h"

namespace optimus {

std::string text(const RankJoinRequest& join_request) {
  return Json{{"nonce", join_request.nonce},
              {"host", join_request.rank.host},
              {"address", join_request.rank.address},
              {"pid", join_request.rank.pid},
              {"local_rank", join_request.rank.local_rank},
              {"store_address", join_request.store_address}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankJoinRequest parse_rank_join_request(const std::string& text) {
  const Json json = parse_json(text, "a join request");
  const JsonView view(json, "a join request");
  RankJoinRequest join_request;
  join_request.nonce = view.at("nonce").text(), join_request.store_address = view.at("store_address").text();
  join_request.rank.host = view.at("host").text(), join_request.rank.address = view.at("address").text();
  join_request.rank.pid = static_cast<int>(view.at("pid").integer(0, INT32_MAX));
  join_request.rank.local_rank = static_cast<int>(view.at("local_rank").integer(0, INT32_MAX));
  return join_request;
}

std::vector<int> host_numbers(const std::vector<PresentRank>& ranks) {
  std::vector<std::string> names;
  for (const PresentRank& rank : ranks) names.push_back(rank.host + " " + rank.address);
  return indices_of_distinct(names);
}

Json ranks_json(const std::vector<PresentRank>& ranks) {
  Json list = Json::array();
  for (const PresentRank& rank : ranks) list.push_back({rank.host, rank.address, rank.pid, rank.local_rank});
  return list;
}

std::vector<PresentRank> parse_present_ranks(const JsonView& view) {
  std::vector<PresentRank> ranks;
  for (const JsonView& entry : view.elements()) {
    const auto fields = entry.elements();
    if (fields.size() != 4) entry.refuse("[host, address, process id, local rank]");
    ranks.push_back({fields[0].text(), fields[1].text(), static_cast<int>(fields[2].integer(0, INT32_MAX)),
                     static_cast<int>(fields[3].integer(0, INT32_MAX))});
  }
  return ranks;
}

}  // namespace optimus
