// Command lines of programs: wrong usage exits with 2, a failure with 1, each with one line on
// standard error.
#pragma once

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <ios>
#include <iostream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include <CLI/CLI.hpp>

#include "printable.hpp"

namespace examples {

// A wrong command line.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the decimal number `word`, at least `least`. Refuses numbers outside the range of `Int`:
// CLI11's own conversion clamps them, and reads 010 as eight.
template <class Int>
Int read_number(const std::string& name, const std::string& word, Int least) {
  const auto fail = [&](const std::string& expected) {
    throw CLI::ValidationError(name + " must be " + expected + "; found " + word);
  };
  Int value = least;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || stop != end || error == std::errc::invalid_argument) fail("a whole number");
  if (value < least || (error == std::errc::result_out_of_range && word.front() == '-')) {
    fail("at least " + std::to_string(least));
  }
  if (error == std::errc::result_out_of_range) {
    fail("at most " + std::to_string(std::numeric_limits<Int>::max()));
  }
  return value;
}

// Adds --ignore-key, which may be repeated.
inline void add_ignored_keys(CLI::App& app, std::vector<std::string>& keys) {
  app.add_option("--ignore-key", keys,
                 "Accept this unknown key of the model's config.json or GGUF file; may be repeated")
      ->type_name("NAME")
      ->take_all()
      ->allow_extra_args(false);
}

// Adds an option that takes a decimal number of at least `least`.
template <class Int>
CLI::Option* add_number(CLI::App& app, const std::string& name, Int& value, Int least,
                        const std::string& description) {
  const auto read = [name, &value, least](const CLI::results_t& words) {
    value = read_number(name, words.back(), least);
    return true;
  };
  return app.add_option(name, read, description)
      ->type_name("NUMBER")
      ->default_str(std::to_string(value));
}
// Adds an optional number.
template <class Int>
CLI::Option* add_number(CLI::App& app, const std::string& name, std::optional<Int>& value,
                        Int least, const std::string& description) {
  const auto read = [name, &value, least](const CLI::results_t& words) {
    value = read_number(name, words.back(), least);
    return true;
  };
  return app.add_option(name, read, description)->type_name("NUMBER");
}

// Finite numbers from `least` to `most`; with `open`, without `least`.
struct RealRange {
  double least = 0, most = std::numeric_limits<double>::infinity();
  bool open = false;

  bool has(double x) const {
    return std::isfinite(x) && x <= most && (open ? x > least : x >= least);
  }
  std::string text() const {
    std::ostringstream result;
    if (std::isfinite(most)) {
      result << "lie in " << (open ? '(' : '[') << least << ", " << most << ']';
    } else {
      result << "be a number " << (open ? "above " : "of at least ") << least;
    }
    return result.str();
  }
};

// Adds an option that takes a number of `range`: CLI11's own checks accept NaN. --help shows the
// default if that is in the range.
inline CLI::Option* add_real(CLI::App& app, const std::string& name, double& value,
                             const RealRange& range, const std::string& description) {
  const auto read = [name, &value, range](const CLI::results_t& words) {
    const std::string& word = words.back();
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc() && stop == end && range.has(value)) return true;
    throw CLI::ValidationError(name + " must " + range.text() + "; found " + word);
  };
  CLI::Option* option = app.add_option(name, read, description)->type_name("FLOAT");
  if (!range.has(value)) return option;
  std::ostringstream standard;
  standard << value;
  return option->default_str(standard.str());
}

// During its lifetime, a failed write to std::cout throws std::ios_base::failure: std::cout is
// flushed once more after main(), where nothing could catch the exception.
class ThrowingOutput {
 public:
  ThrowingOutput() { std::cout.exceptions(std::ios::badbit | std::ios::failbit); }
  ~ThrowingOutput() { std::cout.exceptions(std::ios::goodbit); }
  ThrowingOutput(const ThrowingOutput&) = delete;
  ThrowingOutput& operator=(const ThrowingOutput&) = delete;
};

// Reads the options of `app` and calls `run`, which returns the exit status or nothing (0); returns
// the program's exit status.
template <class Run>
int run_program(CLI::App& app, const std::string& name, int argc, char** argv, Run&& run) {
  // One line, even if the text that it quotes has line ends.
  const auto line = [&](const std::string& what) { return name + ": " + printable(what) + "\n"; };
  app.failure_message([&](const CLI::App*, const CLI::Error& error) { return line(error.what()); });
#ifdef SIGPIPE
  std::signal(SIGPIPE, SIG_IGN);  // writing to a closed pipe is then an error
#endif
  int status = 0;
  try {
    // Destroyed before the handlers below write: std::cerr flushes std::cout first.
    const ThrowingOutput throwing;
    try {
      app.parse(argc, argv);
      if constexpr (std::is_void_v<decltype(run())>) {
        run();
      } else {
        status = run();
      }
    } catch (const CLI::ParseError& error) {
      status = app.exit(error) == 0 ? 0 : 2;  // --help ends here as well
    }
    std::cout.flush();
    // A failed write is recorded in the stream, not in the result of a flush.
    const bool has_failed = std::ferror(stdout) != 0;
    if (std::fflush(stdout) != 0 || has_failed) throw std::ios_base::failure("stdout");
    return status;
  } catch (const std::ios_base::failure&) {
    std::cerr << line("cannot write to standard output");
    return 1;
  } catch (const UsageError& error) {
    std::cerr << line(error.what());
    return 2;
  } catch (const std::exception& error) {
    std::cerr << line(error.what());
    return 1;
  }
}

}  // namespace examples
