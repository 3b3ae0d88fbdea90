#include "tests/train/data/tokenizer/json.h"

namespace moelab {
namespace {

std::string utf8_below_0x800(int point) {
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

}  // namespace

nlohmann::json base_tokenizer() {
  nlohmann::json vocabulary;
  int id = 0;
  const auto add_all = [&](int first, int last) {
    for (int point = first; point <= last; ++point) vocabulary[utf8_below_0x800(point)] = id++;
  };
  add_all('!', '~');
  add_all(0xA1, 0xAC);
  add_all(0xAE, 0xFF);
  add_all(0x100, 0x143);
  const nlohmann::json level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", level},
          {"post_processor", nullptr},
          {"decoder", level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
}

}  // namespace moelab
