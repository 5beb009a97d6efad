// One rank, as a program runs without mpirun.
#include <attn/distributed/mpi.hpp>

int main() {
  attn::MpiCommunicator world;
  return world.size() == 1 && world.split(0)->rank() == 0 ? 0 : 1;
}
