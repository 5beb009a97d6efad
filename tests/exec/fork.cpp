// Children of fork() compute their parent's bits, before and after attn or an OpenMP region has
// started threads; so do a child's child and a child's thread.
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "attn/attn.hpp"

#if !defined(_OPENMP)
int main() {
  std::printf("skipped: compiled without OpenMP\n");
  return 77;
}
#else
namespace {

using attn::Tensor4;

const attn::OpenMPExecutor four(4);

/// An attention call large enough for threads.
Tensor4<float> attend(const attn::Executor& executor) {
  Tensor4<float> x({1, 4, 256, 64});
  for (attn::index_t i = 0; i < x.size(); ++i) {
    x.data()[i] = 0.001f * static_cast<float>(i * 7919 % 2003 - 1000);
  }
  return attn::scaled_dot_product_attention(x, x, x, {.execution = {.executor = &executor}});
}

bool computes() {
  static const Tensor4<float> expected = attend(attn::SerialExecutor());
  const Tensor4<float> found = attend(four);
  const std::size_t size = sizeof(float) * static_cast<std::size_t>(found.size());
  return std::memcmp(found.data(), expected.data(), size) == 0;
}

/// Whether a child ends by itself, within 20 seconds, after `passes` returned true in it.
template <class F>
bool child(F passes) {
  const pid_t id = fork();
  if (id == 0) {
    alarm(20);
    _exit(passes() ? 0 : 1);
  }
  int status = 1;
  return id > 0 && waitpid(id, &status, 0) == id && status == 0;
}

bool computes_in_thread() {
  bool passed = false;
  std::thread([&] { passed = computes() && child(computes); }).join();
  return passed;
}

int failures = 0;

void expect(bool passed, const std::string& what) {
  if (!passed) ++failures;
  std::printf("%s: %s\n", passed ? "passed" : "FAILED", what.c_str());
  std::fflush(stdout);
}

void expect_of_children(const std::string& parent) {
  expect(child(computes), "child of a parent " + parent);
  expect(child([] { return child(computes); }), "child's child of a parent " + parent);
  expect(child([] { return computes() && child(computes) && computes(); }),
         "child that computes before and after its own child, of a parent " + parent);
  expect(child(computes_in_thread), "child's thread, of a parent " + parent);
}

}  // namespace

int main() {
  expect(child([] { return four.concurrency() == 4; }), "child of a parent without threads has 4");
  expect_of_children("without threads");

  int threads = 0;
#pragma omp parallel num_threads(4) reduction(+ : threads)
  threads += 1;
  expect(threads > 1, "an OpenMP region of the program's own");
  expect_of_children("with a region of its own");

  expect(computes(), "parent");
  expect_of_children("that computed");
  expect(four.concurrency() == 4 && computes(), "parent, after its children");
  return failures == 0 ? 0 : 1;
}
#endif
