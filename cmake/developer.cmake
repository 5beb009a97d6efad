# Build type, warnings and sanitizers of attn's own files, not of its users' files.
#
# Included after the dependencies: a fetched one is compiled with its own flags.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow)
if(ATTN_WERROR)
  add_compile_options(-Werror)
endif()

# Programs of the ranks of MPI are built where it is. Not under sanitizers: Open MPI leaks memory at exit, and local ranks
# run the same code.
set(attn_has_mpi OFF)
if((ATTN_BUILD_TESTS OR ATTN_BUILD_EXAMPLES OR ATTN_BUILD_BENCHMARKS) AND NOT CMAKE_CROSSCOMPILING AND NOT ATTN_SANITIZE)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(attn_has_mpi ON)
    # mpirun needs the first two to run as root, the others on fewer cores than ranks.
    set(attn_mpi_environment OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1)
  elseif(ATTN_BUILD_TESTS)
    message(WARNING "attn::mpi is not tested: MPI was not found (Debian: libopenmpi-dev)")
  endif()
endif()

if(ATTN_SANITIZE)
  add_compile_options(-fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ATTN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With sanitizers, g++ gives false warnings of this kind, even in the standard library's headers.
    add_compile_options(-Wno-maybe-uninitialized)
  else()
    # Programs and attn::compiled pass each other functions on structs of equal layout in different namespaces.
    add_compile_options(-fno-sanitize=function)
  endif()
endif()
