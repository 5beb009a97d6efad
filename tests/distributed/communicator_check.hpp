// exchanges_are_right(): tests every function of any Communicator.
#pragma once

#include <numeric>
#include <vector>

#include "attn/distributed/communicator.hpp"

namespace attn_test {

/// Called by every rank; returns whether this rank got the right data.
inline bool exchanges_are_right(attn::Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  const auto bytes = [](std::vector<int>& x) { return std::as_writable_bytes(std::span(x)); };
  bool right = true;

  // To all ranks, in two messages, one of them empty; received in reverse order of ranks.
  std::vector<int> mine(1000);
  std::iota(mine.begin(), mine.end(), 1000 * rank);
  std::vector<std::vector<int>> others(static_cast<std::size_t>(size), std::vector<int>(1000));
  std::vector<std::unique_ptr<attn::Request>> requests;
  for (int to = 0; to < size; ++to) {
    requests.push_back(comm.send(to, {}));
    requests.push_back(comm.send(to, bytes(mine)));
  }
  for (int from = size; from-- > 0;) {
    requests.push_back(comm.receive(from, {}));
    requests.push_back(comm.receive(from, bytes(others[static_cast<std::size_t>(from)])));
  }
  for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
    while (!(*request)->poll()) {
    }
    (*request)->wait();  // again
  }
  for (int from = 0; from < size; ++from) {
    const auto& x = others[static_cast<std::size_t>(from)];
    right = right && x.front() == 1000 * from && x.back() == 1000 * from + 999;
  }

  std::vector<int> all(static_cast<std::size_t>(2 * size)), two = {rank, rank * rank};
  comm.all_gather(bytes(two), bytes(all));
  for (int from = 0; from < size; ++from) {
    const auto at = static_cast<std::size_t>(2 * from);
    right = right && all[at] == from && all[at + 1] == from * from;
  }
  for (int root = 0; root < size; ++root) {
    std::vector<int> x = {rank == root ? 7 * root : -1};
    comm.broadcast(root, bytes(x));
    right = right && x[0] == 7 * root;
  }
  comm.barrier();

  // Groups of even and odd ranks, each then split into groups of one.
  const auto group = comm.split(rank % 2);
  right = right && group->rank() == rank / 2 && group->size() == (size + 1 - rank % 2) / 2;
  std::vector<int> of_group(static_cast<std::size_t>(group->size())), one = {rank};
  group->all_gather(bytes(one), bytes(of_group));
  for (int n = 0; n < group->size(); ++n) {
    right = right && of_group[static_cast<std::size_t>(n)] == 2 * n + rank % 2;
  }
  const auto alone = group->split(group->rank());
  return right && alone->rank() == 0 && alone->size() == 1;
}

}  // namespace attn_test
