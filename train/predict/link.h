#pragma once
#include <string>
#include <vector>

namespace moelab {

// What connects ranks: each rank has one such link, and sends and receives over it at the same time.
struct Link {
  std::string name;             // pcie4, 100Gbit, …
  std::string about;            // what it is, and the source of its figures
  double seconds_per_byte = 0;  // in each direction
  double latency = 0;           // seconds from the start of a message until its first byte arrives
};

// The link of that name in devices.json, or a network of that rate, such as 40Gbit or 500Mbit, which is
// otherwise like the named network of the nearest rate. Throws UserError that says what would be right.
Link find_link(const std::string& name_or_rate);
std::vector<std::string> link_names();

// The links of devices.json (schema 1) when the program was built, or of another text. Throws UserError that
// names the link for a figure that is missing or not positive.
std::vector<Link> parse_links(const std::string& devices);

}  // namespace moelab
