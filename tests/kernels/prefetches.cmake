# Fails unless the compiled kernels ask for memory ahead where they are to: g++ 12 dropped whole
# functions that did nothing else (core/prefetch.hpp), and results stay the same, so that no other
# test sees it.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND "${OBJDUMP}" --disassemble "${LIBRARY}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
# The names of functions, each followed by the requests in it.
string(REGEX MATCHALL "<[A-Za-z0-9_.]+>:|prefetcht1" found "${text}")
# Of attention's rows, of its products, of GEMM's, of few rows by keys and by values; compilers inline some of the names into others.
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
    message(FATAL_ERROR "${LIBRARY}: nothing in ${place} asks for memory ahead")
  endif()
endforeach()
