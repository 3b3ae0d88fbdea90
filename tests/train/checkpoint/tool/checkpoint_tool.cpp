// Helper program for test_safetensors.py and test_crashes.py.
//
//   checkpoint_tool copy IN OUT        reads a safetensors file into tensors and writes them to OUT
//   checkpoint_tool inspect FILE…      prints a line per file: "ok", or "refused: MESSAGE"
//   checkpoint_tool serve              reads commands from stdin, answers each on stdout:
//     save DIR STEP     forks a child that waits for `go`, writes one checkpoint (keeping two) and prints
//                       "saved STEP" or "error: MESSAGE"
//     load DIR          forks a child that waits for `go`, loads the newest checkpoint and prints
//                       "loaded STEP" or "error: …"
//     loop DIR FIRST    forks a child that saves FIRST, FIRST + 1, … through a CheckpointWriter, printing
//                       "saved STEP" for each, until it is killed
//     rank_save DIR STEP RANK RANKS STORE, rank_loop DIR FIRST RANK RANKS STORE
//                       as save and loop, by one of several ranks that write their parts together; they meet
//                       through the file STORE, and each says "ready" when it has met the others
//                       All these answer "child PID".
//     go                lets the child begin
//     wait              answers "ended STATUS" when the child has ended
//     check DIR         loads the newest checkpoint and answers "loaded STEP" or "error: MESSAGE"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <csignal>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>

#include "kernels/memory/ledger.h"
#include "train/checkpoint/checkpoint.h"
#include "train/parallel/c10d_communicator.h"
#include "train/parallel/gloo_group.h"

namespace moelab {
namespace {

constexpr int64_t kKeep = 2;

// One write(2) per line, so that lines of parent and child don't mix and strace sees where the work ended.
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::exit(1);
}

CheckpointContent content_of(int64_t step) {
  CheckpointContent content;
  content.state = {step, step * 10, "{\"step\":" + std::to_string(step) + "}"};
  content.model = {{"w", at::full({40, 30}, static_cast<double>(step), at::kFloat)},
                   {"v", at::full({7}, static_cast<double>(step), at::kBFloat16)}};
  content.optimizer = {{"m", at::full({40, 30}, static_cast<double>(-step), at::kFloat)}};
  content.files = {{"config.yaml", "step: " + std::to_string(step) + "\n"}};
  content.commit = "abc";
  return content;
}

// Its parts of content_of(step).
CheckpointContent content_of(int64_t step, const Communicator& ranks) {
  CheckpointContent content = content_of(step);
  for (std::vector<TensorEntry>* entries : {&content.model, &content.optimizer}) {
    for (TensorEntry& entry : *entries) {
      const int64_t count = entry.tensor.numel(), first = count * ranks.rank() / ranks.size(),
                    end = count * (ranks.rank() + 1) / ranks.size();
      entry.part = {entry.tensor.sizes().vec(), first};
      entry.tensor = entry.tensor.view(-1).narrow(0, first, end - first);
    }
  }
  return content;
}

// Returns "loaded STEP"; all content must be of that step.
std::string load(const std::string& folder) {
  try {
    const LoadedCheckpoint loaded = load_latest(folder);
    const CheckpointContent expected = content_of(loaded.state.step);
    bool equal = loaded.state.json == expected.state.json && loaded.files == expected.files;
    for (const TensorEntry& e : expected.model) equal &= at::equal(loaded.model.tensor(e.name), e.tensor);
    for (const TensorEntry& e : expected.optimizer)
      equal &= at::equal(loaded.optimizer.tensor(e.name), e.tensor);
    if (!equal) return "error: step " + std::to_string(loaded.state.step) + " isn't what was saved";
    return "loaded " + std::to_string(loaded.state.step);
  } catch (const std::exception& error) {
    return std::string("error: ") + error.what();
  }
}

std::string save(const std::string& folder, int64_t step, Communicator* ranks) {
  if (ranks)
    write_checkpoint(folder, content_of(step, *ranks), kKeep, *ranks);
  else
    write_checkpoint(folder, content_of(step), kKeep);
  return "saved " + std::to_string(step);
}

[[noreturn]] void loop(const std::string& folder, int64_t first, Communicator* ranks) {
  CheckpointWriter writer(folder, kKeep, ranks ? *ranks : one_rank());
  for (int64_t step = first;; ++step) {
    writer.save(ranks ? content_of(step, *ranks) : content_of(step));
    writer.wait();
    say("saved " + std::to_string(step));
  }
}

// Of several ranks: which, and where they meet.
struct Place {
  int64_t rank = 0, ranks = 1;
  std::string store;
};

std::optional<C10dCommunicator> meet(const Place& place) {
  if (place.ranks == 1) return std::nullopt;
  std::vector<int64_t> all(place.ranks);
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto store = c10::make_intrusive<c10d::FileStore>(place.store, static_cast<int>(place.ranks));
  return std::optional<C10dCommunicator>(
      std::in_place, gloo_group(store, "all", place.rank, all, std::chrono::seconds(20)), "checkpoint");
}

class Server {
 public:
  void run() {
    // LibTorch reads system files at first use. Doing that here leaves only the calls of a save or load to
    // the children.
    const TensorEntry used = content_of(0).model.at(1);
    at::equal(used.tensor, used.tensor.clone());
    for (std::string line; std::getline(std::cin, line);) answer(line);
  }

 private:
  void answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, folder;
    int64_t step = 0;
    Place place;
    words >> command >> folder >> step >> place.rank >> place.ranks >> place.store;
    if (command.ends_with("save")) start(place, [=](Communicator* ranks) { say(save(folder, step, ranks)); });
    if (command == "load") start(place, [=](Communicator*) { say(load(folder)); });
    if (command.ends_with("loop")) start(place, [=](Communicator* ranks) { loop(folder, step, ranks); });
    if (command == "check") say(load(folder));
    if (command == "go") ::kill(child_, SIGUSR1);
    if (command == "wait") wait();
  }

  template <class Work>
  void start(const Place& place, const Work& work) {
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, nullptr);  // kept until the child asks for it
    child_ = ::fork();
    if (child_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends the child if the test fails
    say("child " + std::to_string(::getpid()));
    std::optional<C10dCommunicator> ranks = meet(place);
    if (ranks) say("ready");
    int signal = 0;
    sigwait(&go, &signal);
    try {
      work(ranks ? &*ranks : nullptr);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      say("error: " + text.substr(0, text.find('\n')));
    }
    ::_exit(0);
  }

  void wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    say("ended " + std::to_string(status));
  }

  pid_t child_ = 0;
};

int copy(const std::string& from, const std::string& to) {
  const SafetensorsFile file(from);
  std::vector<TensorEntry> entries;
  for (const SafetensorsInfo& info : file.header().tensors)
    entries.push_back({info.name, file.tensor(info.name)});
  write_safetensors(to, entries, file.header().metadata);
  return 0;
}

void inspect(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    for (const SafetensorsInfo& info : file.header().tensors) file.tensor(info.name);
    std::cout << "ok\n";
  } catch (const UserError& error) {
    std::cout << "refused: " << error.what() << '\n';
  }
}

int run(const std::vector<std::string>& args) {
  install_allocators();
  at::set_num_threads(1);         // children are forked
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit must be an error of write(2)
  if (args.size() == 3 && args[0] == "copy") return copy(args[1], args[2]);
  if (!args.empty() && args[0] == "inspect") {
    for (size_t i = 1; i < args.size(); ++i) inspect(args[i]);
    return 0;
  }
  if (args.size() == 1 && args[0] == "serve") {
    Server().run();
    return 0;
  }
  std::cerr << "usage: checkpoint_tool copy IN OUT | inspect FILE… | serve\n";
  return 2;
}

}  // namespace
}  // namespace moelab

int main(int argc, char** argv) {
  try {
    return moelab::run({argv + 1, argv + argc});
  } catch (const moelab::UserError& error) {
    std::cerr << "moelab: " << error.what() << '\n';
    return 2;
  }
}
