#include "bench/tradeoff/link.h"

#include <charconv>

#include "moe/settings/error.h"

namespace moelab::tradeoff {

Link link_of(const std::string& text) {
  if (text == Link{}.name) return {};
  Link link{text};
  const char* end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, link.megabits);
  const std::string ending(unit, end);
  const bool giga = ending == "Gbit", known = giga || ending == "Mbit";
  if (error != std::errc{} || !known || link.megabits < 1 || link.megabits > 1'000'000)
    throw UserError("link " + text + ": unlimited, or a rate such as 10Gbit or 500Mbit is expected");
  if (giga) link.megabits *= 1000;
  return link;
}

}  // namespace moelab::tradeoff
