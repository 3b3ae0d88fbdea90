#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "train/program/commands/commands.h"
#include "train/program/commands/text_model.h"

namespace moelab {
namespace {

// A dialogue: what was said so far is the prompt of the next answer.
class Dialogue {
 public:
  explicit Dialogue(const GenerateCall& call) : text_(call), positions_(text_.settings().train.sequence) {
    text_.open(positions_);
    longest_ = positions_ - std::min(call.max_tokens, positions_ / 2);
  }

  void answer(const std::string& line) {
    append(text_.tokenizer().encode(line + "\n"));
    // The oldest is forgotten first, so that an answer has room.
    if (static_cast<int64_t>(said_.size()) > longest_) said_.erase(said_.begin(), said_.end() - longest_);
    append(text_.write(said_, turn_++).tokens);
    append(text_.tokenizer().encode("\n"));
  }

  std::string name() const { return text_.checkpoint().path.string(); }

 private:
  void append(const std::vector<int64_t>& ids) { said_.insert(said_.end(), ids.begin(), ids.end()); }

  TextModel text_;
  int64_t positions_, longest_ = 0;  // of what was said, in tokens
  std::vector<int64_t> said_;
  uint64_t turn_ = 0;
};

void talk(const GenerateCall& call) {
  Dialogue dialogue(call);
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) print_at_once(dialogue.name() + ": each line is answered; Ctrl-D ends\n");
  for (std::string line;;) {
    if (terminal) print_at_once("> ");
    if (!std::getline(std::cin, line)) break;
    dialogue.answer(line);
  }
  if (terminal) print_at_once("\n");
}

}  // namespace

int chat_command(const GenerateCall& call) {
  check_sampling(call.sampling);
  try {
    talk(call);
  } catch (const c10::OutOfMemoryError&) {
    return text_out_of_memory();
  }
  return 0;
}

}  // namespace moelab
