// Loaded by LD_PRELOAD. The program starts once for many: when its libraries are loaded, and before its main
// and any thread of its own, it forks for each command that it is sent. A command is a line of stdin,
// `FILE<TAB>ARGUMENT<TAB>…`. The child runs main with these arguments, says nothing on stdout, and FILE takes
// its stderr. The server answers `PID\n` when it has forked and waitpid's `STATUS\n` when that process has
// ended, and ends where its stdin does.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Main = int(int, char**, char**);
using StartMain = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);

bool has_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks)) > 1;
}

// Returns in each child, with the words of its line; in the server when no further line comes, with none.
std::vector<std::string> fork_for_each_line() {
  for (std::string line; std::getline(std::cin, line);) {
    const pid_t child = fork();
    if (child == 0) {
      std::istringstream stream(line);
      std::vector<std::string> words;
      for (std::string word; std::getline(stream, word, '\t');) words.push_back(word);
      return words;
    }
    std::cout << child << std::endl;
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << status << std::endl;
  }
  return {};
}

void open_as(int descriptor, const char* path, int flags) {
  const int file = open(path, flags, 0644);
  dup2(file, descriptor);
  close(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main* main, int, char** arguments,
                                                                        void (*init)(), void (*fini)(),
                                                                        void (*loader_fini)(),
                                                                        void* stack_end) {
  unsetenv("LD_PRELOAD");
  if (has_threads()) {
    std::cerr << "fork_server: a library has started threads, which a child would not have\n";
    _exit(1);
  }
  static std::vector<std::string> words = fork_for_each_line();
  if (words.empty()) _exit(0);
  open_as(STDIN_FILENO, "/dev/null", O_RDONLY);
  open_as(STDOUT_FILENO, "/dev/null", O_WRONLY);
  open_as(STDERR_FILENO, words[0].c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  words[0] = arguments[0];
  static std::vector<char*> given;
  for (std::string& word : words) given.push_back(word.data());
  given.push_back(nullptr);
  const auto start = reinterpret_cast<StartMain*>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(main, static_cast<int>(words.size()), given.data(), init, fini, loader_fini, stack_end);
}
