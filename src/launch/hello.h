// What ranks of a launcher tell each other about themselves while they gather (gathering.h): a hello through the store, and the list of
// all who are there in rank 0's answer. Texts from the network: sizes and numbers are checked. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace optimus {

struct PresentRank {
  std::string host, address;
  int pid = 0, local_rank = 0;
};

struct RankHello {
  std::string nonce;  // the rank's own: by it it is answered
  PresentRank rank;
  std::string store_address;  // of the store, as this rank reaches it
};
std::string text(const RankHello& hello);
// Throws UserError when it is no such text.
RankHello parse_hello(const std::string& text);

// Hosts in the order of their first ranks.
std::vector<int> host_numbers(const std::vector<PresentRank>& ranks);

Json ranks_json(const std::vector<PresentRank>& ranks);
std::vector<PresentRank> parse_present_ranks(const JsonView& view);

}  // namespace optimus
