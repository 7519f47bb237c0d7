// Implements hello.h.
#include "launch/hello.h"

#include "base/text.h"

namespace optimus {

std::string text(const RankHello& hello) {
  return Json{{"nonce", hello.nonce},
              {"host", hello.rank.host},
              {"address", hello.rank.address},
              {"pid", hello.rank.pid},
              {"local_rank", hello.rank.local_rank},
              {"store_address", hello.store_address}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankHello parse_hello(const std::string& text) {
  const Json json = parse_json(text, "a join request");
  const JsonView view(json, "a join request");
  RankHello hello;
  hello.nonce = view.at("nonce").text(), hello.store_address = view.at("store_address").text();
  hello.rank.host = view.at("host").text(), hello.rank.address = view.at("address").text();
  hello.rank.pid = static_cast<int>(view.at("pid").integer(0, INT32_MAX));
  hello.rank.local_rank = static_cast<int>(view.at("local_rank").integer(0, INT32_MAX));
  return hello;
}

std::vector<int> host_numbers(const std::vector<PresentRank>& ranks) {
  std::vector<std::string> names;
  for (const PresentRank& rank : ranks) names.push_back(rank.host + " " + rank.address);
  return numbered(names);
}

Json ranks_json(const std::vector<PresentRank>& ranks) {
  Json list = Json::array();
  for (const PresentRank& rank : ranks) list.push_back({rank.host, rank.address, rank.pid, rank.local_rank});
  return list;
}

std::vector<PresentRank> parse_present_ranks(const JsonView& view) {
  std::vector<PresentRank> ranks;
  for (const JsonView& entry : view.elements()) {
    const auto parts = entry.elements();
    if (parts.size() != 4) entry.refuse("host, address, process and local rank");
    ranks.push_back({parts[0].text(), parts[1].text(), static_cast<int>(parts[2].integer(0, INT32_MAX)),
                     static_cast<int>(parts[3].integer(0, INT32_MAX))});
  }
  return ranks;
}

}  // namespace optimus
