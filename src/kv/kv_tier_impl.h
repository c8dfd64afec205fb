// What a KvCache has under way in its tier. Only kv_cache_impl.h includes this.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "kv/boundaries.h"
#include "kv/budget.h"
#include "kv/kv_tier.h"
#include "kv/prefix_index.h"
#include "kv/tier_record.h"

namespace weir {

struct TierSide {
  // One block on its way out. The lease ends with it.
  struct Write {
    size_t group = 0;
    uint32_t slot = 0;
    PrefixNode* node = nullptr;  // null once the node is gone
    std::vector<std::byte> header;
  };

  // One block on its way in.
  struct Part {
    // `released`: its block is no longer the load's.
    enum class State : uint8_t { wanted, coming, arrived, lost, released };
    size_t group = 0;
    int64_t block = 0;  // index in the chain
    uint32_t slot = 0;
    State state = State::wanted;
    std::vector<std::byte> header;
  };

  struct Load {
    NamespaceId name_space{};
    std::vector<int32_t> prompt;
    Digest root{};
    std::vector<Digest> names;  // after each full block before the prompt's last token
    size_t n_wanted = 0;        // of these blocks: up to the start that it goes for
    LoadState state = LoadState::looking;
    bool is_cancelled = false;   // nobody waits: only memory that the tier writes to is left
    bool is_corrupt = false;     // something of it was
    PrefixNode* base = nullptr;  // end of the known path, which stays meanwhile
    std::vector<std::pair<size_t, int64_t>> asked;  // group and block of each key of the find
    std::vector<std::vector<bool>> held;            // [group][block], by what the tier says
    std::vector<Part> parts;
    size_t n_coming = 0;
    int64_t promised = 0;  // first token to compute if all of it comes
    Reservation memory, nodes;

    size_t n_blocks() const { return names.size(); }
    const Digest& parent_of(int64_t block) const {
      return block == 0 ? root : names[static_cast<size_t>(block - 1)];
    }
  };

  KvTierOptions options;
  TierCounters counters;
  Reservation write_memory;  // for max_writes of them
  std::map<TierTicket, Write> writes;
  std::map<LoadId, Load> loads;
  std::map<TierTicket, LoadId> finds;
  std::map<TierTicket, std::pair<LoadId, size_t>> gets;  // and which part
  uint64_t next_ticket = 0, next_load = 0;
  bool has_news = false;  // something may have become worth writing

  Tier* tier() const { return options.tier; }
  TierTicket ticket() { return TierTicket{next_ticket++}; }
  bool is_worth(int64_t tokens, Bytes bytes) const {
    return !options.policy || options.policy->is_worth_loading(tokens, bytes);
  }
  void count(TierMiss miss) { ++counters.misses[static_cast<size_t>(miss)]; }
};

}  // namespace weir
