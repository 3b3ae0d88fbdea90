#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace moelab {

// Decides which texts a forward pass reads together. Limits: the number of texts at a time, each with its own
// place for keys and values, and the number of tokens per pass. Other texts wait in order of arrival. Each
// text being generated gets its one token in every pass; prompts share the remaining tokens in order of
// arrival, and are read in parts if they do not fit (Sarathi, arXiv 2308.16369).
class TextScheduler {
 public:
  // Both at least 1. At most `tokens_a_pass` texts are read together.
  TextScheduler(int64_t texts, int64_t tokens_a_pass);

  // Queues a text of `tokens` (at least 1); returns its number, counted from 0.
  size_t add(int64_t tokens);

  struct Part {
    size_t text;
    int64_t place;     // in [0, texts)
    int64_t tokens;    // number of the text's next tokens to read
    bool ends_unread;  // the text has then been read to its end, so its next token can be chosen
  };
  // The next pass; empty when every text is closed. Call advance() or close() for each part.
  std::vector<Part> next();

  // The part was read. If it ended the text, one new token has been appended.
  void advance(const Part& part);
  // The text has ended; frees its place.
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
  std::vector<Text> running_;         // in order of arrival
  std::vector<int64_t> free_places_;  // the last one is used first
};

}  // namespace moelab
