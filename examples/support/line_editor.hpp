// Line input: with editing and history on a terminal, plain lines otherwise.
#pragma once

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <unistd.h>

#if !defined(_WIN32)
#include <termios.h>
#endif

#ifdef CHAT_HAS_LIBEDIT
#include <editline/readline.h>
#endif

namespace examples {

// While an object exists, Ctrl-C is recorded instead of ending the program. A terminal does not
// echo ^C or other input, which is kept for the next line; a Windows console does.
#if defined(_WIN32)
class Interrupt {
 public:
  Interrupt() : before_(std::signal(SIGINT, record)) { flag() = 0; }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt() { std::signal(SIGINT, before_); }

  static bool came() { return flag() != 0; }

 private:
  static void record(int) {
    std::signal(SIGINT, record);  // a handler serves one signal
    flag() = 1;
  }
  static volatile std::sig_atomic_t& flag() {
    static volatile std::sig_atomic_t value = 0;
    return value;
  }
  void (*before_)(int);
};
#else
class Interrupt {
 public:
  Interrupt() {
    flag() = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { flag() = 1; };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
    // A background process must not change the terminal.
    has_terminal_ =
        tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &terminal_) == 0;
    if (!has_terminal_) return;
    termios quiet = terminal_;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &quiet);
  }
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt() {
    if (has_terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &terminal_);
    sigaction(SIGINT, &before_, nullptr);
  }

  static bool came() { return flag() != 0; }

 private:
  static volatile std::sig_atomic_t& flag() {
    static volatile std::sig_atomic_t value = 0;
    return value;
  }
  struct sigaction before_ = {};
  termios terminal_ = {};
  bool has_terminal_ = false;
};
#endif

class LineEditor {
 public:
  LineEditor() : on_terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
#ifdef CHAT_HAS_LIBEDIT
    if (on_terminal_) {
      std::setlocale(LC_CTYPE, "");  // for letters beyond ASCII
      rl_readline_name = "chat";
      rl_catch_signals = 1;  // the terminal is restored before Ctrl-C ends the program
      using_history();
    }
#endif
  }

  bool on_terminal() const { return on_terminal_; }

  // No value at the end of the input.
  std::optional<std::string> read(const char* prompt) {
#ifdef CHAT_HAS_LIBEDIT
    if (on_terminal_) {
      char* typed = readline(prompt);
      if (typed == nullptr) return std::nullopt;
      std::string line(typed);
      if (!line.empty()) add_history(typed);
      std::free(typed);
      return line;
    }
#endif
    if (on_terminal_) std::cout << prompt << std::flush;
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

 private:
  bool on_terminal_;
};

}  // namespace examples
