// Join requests, and the list of all ranks in rank 0's reply (rendezvous.h). Sizes and numbers are checked,
// because these texts come from the network. No side effects.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace optimus {

struct PresentRank {
  std::string host, address;
  int pid = 0, local_rank = 0;
};

struct RankJoinRequest {
  std::string nonce;  // a random value of this rank, to which the reply is addressed
  PresentRank rank;
  std::string store_address;  // address at which this rank reaches the store
};
std::string text(const RankJoinRequest& join_request);
// Throws UserError if the text is invalid.
RankJoinRequest parse_rank_join_request(const std::string& text);

// Returns the host number of each rank. Hosts are numbered in the order of their first ranks.
std::vector<int> host_numbers(const std::vector<PresentRank>& ranks);

Json ranks_json(const std::vector<PresentRank>& ranks);
std::vector<PresentRank> parse_present_ranks(const JsonView& view);

}  // namespace optimus
