# Fails unless the compiled kernels contain their prefetches: g++ 12 removed whole functions that only prefetch
# (core/prefetch.hpp). Results stay the same, so that no other test notices it.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND "${OBJDUMP}" --disassemble "${LIBRARY}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
# The names of functions, each followed by its prefetches.
string(REGEX MATCHALL "<[A-Za-z0-9_.]+>:|prefetcht1" found "${text}")
# Functions of attention's rows and products, of GEMM, and of the decode path for keys and values; compilers inline some
# of them into others.
foreach(place "TiledPath" "score_panel|ALayoutE1" "gemm|multiply_block" "dot_block|score_rows" "add_block|add_rows|add_values_rows")
  set(function "")
  set(count 0)
  foreach(item IN LISTS found)
    if(NOT item STREQUAL "prefetcht1")
      set(function "${item}")
    elseif(function MATCHES "${place}")
      math(EXPR count "${count} + 1")
    endif()
  endforeach()
  message("${place}: ${count} requests")
  if(count EQUAL 0)
    message(FATAL_ERROR "${LIBRARY}: no prefetch in ${place}")
  endif()
endforeach()
