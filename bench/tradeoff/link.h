#pragma once
#include <cstdint>
#include <string>

namespace moelab::tradeoff {

// What ranks send over: the loopback device as it is, or limited to a rate (scripts/slow_link.sh).
struct Link {
  std::string name = "unlimited";  // as records have it
  int64_t megabits = 0;            // a second in each direction; 0: unlimited

  bool limited() const { return megabits > 0; }
};

// "unlimited", or a rate such as 10Gbit or 500Mbit. Throws UserError for anything else.
Link link_of(const std::string& text);

}  // namespace moelab::tradeoff
