#include "train/generate/scheduler.h"

#include <algorithm>

namespace moelab {

TextScheduler::TextScheduler(int64_t texts, int64_t tokens_a_pass) : tokens_a_pass_(tokens_a_pass) {
  for (int64_t place = std::min(texts, tokens_a_pass) - 1; place >= 0; --place) free_places_.push_back(place);
}

size_t TextScheduler::add(int64_t tokens) {
  waiting_.push_back({texts_, -1, tokens});
  return texts_++;
}

void TextScheduler::admit() {
  while (!waiting_.empty() && !free_places_.empty()) {
    waiting_.front().place = free_places_.back();
    free_places_.pop_back();
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

std::vector<TextScheduler::Part> TextScheduler::next() {
  admit();
  std::vector<Part> parts;
  int64_t left = tokens_a_pass_;
  const auto take = [&](const Text& text) {
    const int64_t tokens = std::min(text.unread, left);
    if (tokens > 0) parts.push_back({text.number, text.place, tokens, tokens == text.unread});
    left -= tokens;
  };
  for (const Text& text : running_)
    if (text.unread == 1) take(text);
  for (const Text& text : running_)
    if (text.unread > 1) take(text);
  return parts;
}

void TextScheduler::advance(const Part& part) {
  const auto text = std::find_if(running_.begin(), running_.end(),
                                 [&](const Text& running) { return running.number == part.text; });
  text->unread -= part.tokens - (part.ends_unread ? 1 : 0);
}

void TextScheduler::close(const Part& part) {
  free_places_.push_back(part.place);
  std::erase_if(running_, [&](const Text& running) { return running.number == part.text; });
}

}  // namespace moelab
