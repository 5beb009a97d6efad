// Started by mpirun: tests MpiCommunicator, and context parallel attention and training against one
// process.
#include "attn/distributed/mpi.hpp"

#include <cstdio>
#include <iostream>
#include <stdexcept>

#include "attn/distributed.hpp"

#include "distributed/communicator_check.hpp"
#include "distributed/context_draw.hpp"
#include "distributed/data_parallel_run.hpp"
#include "distributed/shard_run.hpp"

int main(int argc, char**) {
  attn::MpiCommunicator world;
  if (argc > 1) {  // "throw": a functor of the last rank throws while the others wait
    const attn::ContextLayout layout(900, world.size());
    const attn::Tensor4<float> x({1, 1, layout.size(world.rank()), 4});
    attn::Tensor4<float> out(x.shape());
    attn::context_parallel_attention(world, layout, x, x, x, out, {},
                                     attn::score_mod([](float s, int, int, int i, int) {
                                       if (i == 899) throw std::domain_error("the last token");
                                       return s;
                                     }));
    world.barrier();
    return 0;
  }
  bool right = attn_test::exchanges_are_right(world);
  if (!right) std::cerr << "wrong messages on rank " << world.rank() << "\n";
  if (!attn_test::trains_as_one_process(world)) {
    std::cerr << "training has other bits on rank " << world.rank() << "\n";
    right = false;
  }
  for (std::uint64_t draw = 0; draw < 6; ++draw) {
    if (attn_test::shards_as_one_process(world, draw)) continue;
    std::cerr << "a sharded model has other bits on rank " << world.rank() << "\n";
    right = false;
  }
  for (std::uint64_t draw = 5000; draw < 5000 + attn_test::draws(20); ++draw) {
    attn_test::Random random(draw);
    const attn_test::ContextDraw<float> drawn(random);
    if (drawn.has_same_bits(world)) continue;
    std::cerr << "other bits on rank " << world.rank() << ": " << random.trace() << ": "
              << drawn.text() << "\n";
    right = false;
  }
  if (right) std::printf("rank %d of %d: same bits\n", world.rank(), world.size());
  return right ? 0 : 1;
}
