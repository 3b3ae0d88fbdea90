#include "train/io/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "train/io/file_descriptor.h"

namespace moelab {

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> pipe{};  // to read from, to write to
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw IoError("start", command[0], errno);
  output_ = pipe[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  const int failure = ::posix_spawnp(&pid_, command[0].c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  if (failure == 0) return;
  ::close(output_);
  throw IoError("start", command[0], failure);
}

ChildProcess::~ChildProcess() {
  end();
  ::close(output_);
}

std::optional<std::string> ChildProcess::take_line() {
  const size_t length = unread_.find('\n');
  if (length == std::string::npos) return std::nullopt;
  std::string line = unread_.substr(0, length);
  unread_.erase(0, length + 1);
  return line;
}

std::optional<std::string> ChildProcess::read_line(double patience) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(patience);
  silent_ = false;
  while (true) {
    if (std::optional<std::string> line = take_line()) return line;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd awaited{output_, POLLIN, 0};
    const int ready = ::poll(&awaited, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    silent_ = ready == 0;
    if (ready <= 0) return std::nullopt;
    std::array<char, 4096> part{};
    const ssize_t bytes = ::read(output_, part.data(), part.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {  // a last line may lack its end
      std::string rest = std::exchange(unread_, {});
      return rest.empty() ? std::nullopt : std::optional(std::move(rest));
    }
    unread_.append(part.data(), static_cast<size_t>(bytes));
  }
}

int ChildProcess::end() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  return wait();
}

int ChildProcess::wait() {
  int status = 0;
  while (pid_ > 0) {
    if (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
    status_ = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    pid_ = 0;
  }
  return status_;
}

}  // namespace moelab
