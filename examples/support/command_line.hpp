// The frame of a program with options: what it was asked for wrongly ends it with 2, what fails with 1,
// each with one line on standard error.
#pragma once

#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

namespace examples {

// An error of whoever called the program.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the options of `app` and calls `run`; returns the program's exit status.
template <class Run>
int run_program(CLI::App& app, const std::string& name, int argc, char** argv, Run&& run) {
  const auto line = [&](const std::string& what) { return name + ": " + what + "\n"; };
  app.failure_message([&](const CLI::App*, const CLI::Error& error) { return line(error.what()); });
  try {
    app.parse(argc, argv);
    run();
    if (!std::cout.flush() || std::fflush(stdout) != 0) {
      throw UsageError("cannot write to standard output");
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help ends here as well
  } catch (const UsageError& error) {
    std::cerr << line(error.what());
    return 2;
  } catch (const std::exception& error) {
    std::cerr << line(error.what());
    return 1;
  }
}

}  // namespace examples
