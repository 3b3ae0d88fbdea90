#include "bench/tradeoff/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <optional>

#include "train/files/file_descriptor.h"

namespace moelab::tradeoff {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Held as well, so that one wait serves for the child's end and for these.
sigset_t awaited_signals() {
  sigset_t set = stop_signals();
  sigaddset(&set, SIGCHLD);
  return set;
}

// What posix_spawn does to the child: output to the log, its own group, no signal held back.
class SpawnOptions {
 public:
  explicit SpawnOptions(const std::filesystem::path& log) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_addopen(&files_, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files_, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&files_, 1, 2);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setsigmask(&attributes_, &none);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;

  pid_t start(const std::vector<std::string>& command) const {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_t pid = 0;
    const int failure = ::posix_spawnp(&pid, argv[0], &files_, &attributes_, argv.data(), environ);
    if (failure != 0) throw IoError("start", command[0], failure);
    return pid;
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

// The child's status, once it has ended.
std::optional<int> ended(pid_t pid, int options) {
  int status = 0;
  while (true) {
    const pid_t result = ::waitpid(pid, &status, options);
    if (result == pid) return status;
    if (result == 0) return std::nullopt;
    if (errno != EINTR) throw IoError("wait for", "a child process", errno);
  }
}

// Why the wait was over before the child was; nothing while it should go on.
std::optional<Exit::Why> wait_for_signal(double seconds) {
  const sigset_t set = awaited_signals();
  timespec patience{};
  patience.tv_sec = static_cast<time_t>(seconds);
  patience.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  const int signal = ::sigtimedwait(&set, nullptr, &patience);
  if (signal == SIGCHLD || (signal < 0 && errno == EINTR)) return std::nullopt;
  if (signal < 0) return Exit::Why::timeout;
  ::raise(signal);  // it stays to be seen by held_signal
  return Exit::Why::stopped;
}

}  // namespace

HeldSignals::HeldSignals() {
  const sigset_t set = awaited_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
}

HeldSignals::~HeldSignals() {
  const sigset_t set = awaited_signals();
  const timespec none{};
  while (::sigtimedwait(&set, nullptr, &none) > 0) {
  }
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

int held_signal() {
  sigset_t pending;
  ::sigpending(&pending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (sigismember(&pending, signal) == 1) return signal;
  return 0;
}

Exit run_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                 double timeout_seconds) {
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t pid = SpawnOptions(log).start(command);
  std::optional<Exit::Why> cut_short;
  std::optional<int> status;
  while (!(status = ended(pid, WNOHANG)) && !cut_short)
    cut_short = wait_for_signal(std::max(0.0, timeout_seconds - elapsed()));
  if (!status) {
    ::kill(-pid, SIGKILL);
    status = ended(pid, 0);
  }
  Exit result{Exit::Why::exited, WEXITSTATUS(*status), elapsed()};
  if (WIFSIGNALED(*status)) result = {Exit::Why::signalled, 128 + WTERMSIG(*status), elapsed()};
  if (cut_short) result.why = *cut_short;
  return result;
}

}  // namespace moelab::tradeoff
