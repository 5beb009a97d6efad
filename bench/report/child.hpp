// Child processes: other programs, or another instance of this one, and their output.
#pragma once

#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace bench {

/// A program that runs in the background until its output is read.
class Child {
 public:
  /// Starts `arguments[0]`, a path, with the rest of the arguments.
  explicit Child(const std::vector<std::string>& arguments) {
    int ends[2];
    if (pipe(ends) != 0) return;
    std::vector<char*> pointers;
    for (const std::string& argument : arguments) {
      pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    pointers.push_back(nullptr);
    id_ = fork();
    if (id_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = ends[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { number(); }

  /// Waits for the program to end. Returns the first number that it printed, or nothing if it could
  /// not run or failed.
  std::optional<double> number() {
    if (id_ <= 0) return std::nullopt;
    std::string text;
    char part[256];
    for (ssize_t got; (got = read(output_, part, sizeof part)) > 0;) {
      text.append(part, static_cast<std::size_t>(got));
    }
    close(output_);
    int status = 1;
    waitpid(id_, &status, 0);
    id_ = -1;
    if (status != 0 || text.empty()) return std::nullopt;
    return std::stod(text);
  }

 private:
  pid_t id_ = -1;
  int output_ = -1;
};

/// The path of the running program.
inline std::string own_path() {
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : "";
}

}  // namespace bench
