#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace moelab {

// Which texts the passes of a model read together: at most so many texts at a time, each with a place of its
// own for its keys and values, and at most so many tokens a pass. The others wait in the order in which they
// came. Texts that are being written get their one token in every pass; prompts share what is left of it, the
// first come first, and are read in parts where they pass it (Sarathi, arXiv 2308.16369).
class TextScheduler {
 public:
  // Both at least 1. No more texts are read together than a pass takes tokens.
  TextScheduler(int64_t texts, int64_t tokens_a_pass);

  // A text of `tokens` (at least 1) joins the queue; returns its number, counted from 0.
  size_t add(int64_t tokens);

  struct Part {
    size_t text;
    int64_t place;     // in [0, texts)
    int64_t tokens;    // the next ones of the text
    bool ends_unread;  // the text is read to its end: what follows it can be chosen
  };
  // The next pass; empty once every text is closed. Each part has to be answered by advance() or close().
  std::vector<Part> next();

  // The part was read. Where it ended the text, one more token now stands behind it.
  void advance(const Part& part);
  // The text ends here; its place is free.
  void close(const Part& part);

 private:
  struct Text {
    size_t number;
    int64_t place, unread;
  };
  void admit();

  int64_t tokens_a_pass_;
  size_t texts_ = 0;
  std::deque<Text> waiting_;          // without a place
  std::vector<Text> running_;         // in the order in which they came
  std::vector<int64_t> free_places_;  // the last is taken first
};

}  // namespace moelab
