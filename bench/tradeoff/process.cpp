#include "bench/tradeoff/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <optional>

#include "train/io/file_descriptor.h"

namespace moelab::tradeoff {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Also blocks SIGCHLD, so that one wait serves for the child's end and for the stop signals.
sigset_t awaited_signals() {
  sigset_t set = stop_signals();
  sigaddset(&set, SIGCHLD);
  return set;
}

int open_to_write(const char* path) { return ::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666); }

// Runs in the child: output to the log, its own process group, no blocked signals, and killed when this
// process dies, in whatever way. Returns, with errno, only when it fails. No path of errors: to the log too.
void become(char* const* command, const char* log, const char* errors, pid_t parent) {
  ::setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) return;
  const int in = ::open("/dev/null", O_RDONLY), out = open_to_write(log);
  const int error = *errors == '\0' ? out : open_to_write(errors);
  if (in < 0 || out < 0 || error < 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(error, 2) < 0)
    return;
  ::execvp(command[0], command);
}

// Forks, because posix_spawn cannot ask for a signal at the parent's death. A pipe that exec closes reports a
// failure.
pid_t start_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                    const std::filesystem::path& errors) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError("start", command[0], errno);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid == 0) {
    become(argv.data(), log.c_str(), errors.c_str(), parent);
    const int failure = errno;
    if (::write(ends[1], &failure, sizeof failure) < 0) ::_exit(126);
    ::_exit(127);
  }
  int failure = pid < 0 ? errno : 0;
  ::close(ends[1]);
  if (pid > 0 && ::read(ends[0], &failure, sizeof failure) > 0) ::waitpid(pid, nullptr, 0);
  ::close(ends[0]);
  if (failure != 0) throw IoError("start", command[0], failure);
  return pid;
}

struct Ended {
  int status = 0;
  int64_t resident_bytes = 0;
};

// How the child ended, once it has.
std::optional<Ended> ended(pid_t pid, int options) {
  int status = 0;
  rusage used{};
  while (true) {
    const pid_t result = ::wait4(pid, &status, options, &used);
    if (result == pid) return Ended{status, used.ru_maxrss * 1024};
    if (result == 0) return std::nullopt;
    if (errno != EINTR) throw IoError("wait for", "a child process", errno);
  }
}

// Why the wait ended before the child did; nothing: keep waiting.
std::optional<Exit::Why> wait_for_signal(double seconds) {
  const sigset_t set = awaited_signals();
  timespec patience{};
  patience.tv_sec = static_cast<time_t>(seconds);
  patience.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  const int signal = ::sigtimedwait(&set, nullptr, &patience);
  if (signal == SIGCHLD || (signal < 0 && errno == EINTR)) return std::nullopt;
  if (signal < 0) return Exit::Why::timeout;
  ::raise(signal);  // stays pending, for held_signal
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
                 double timeout_seconds, const std::filesystem::path& errors) {
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const pid_t pid = start_process(command, log, errors);
  std::optional<Exit::Why> cut_short;
  std::optional<Ended> end;
  while (!(end = ended(pid, WNOHANG)) && !cut_short)
    cut_short = wait_for_signal(std::max(0.0, timeout_seconds - elapsed()));
  if (!end) {
    ::kill(-pid, SIGKILL);
    end = ended(pid, 0);
  }
  Exit result{Exit::Why::exited, WEXITSTATUS(end->status), elapsed(), end->resident_bytes};
  if (WIFSIGNALED(end->status)) {
    result.why = Exit::Why::signalled;
    result.code = 128 + WTERMSIG(end->status);
  }
  if (cut_short) result.why = *cut_short;
  return result;
}

}  // namespace moelab::tradeoff
